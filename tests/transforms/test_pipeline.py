"""Pipelines: the four phases on the host and on meshes, and errors of configs."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.config import ConfigError, build_config, parse
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.plan import plan_run
from credit_jax.training.setup import prepare
from credit_jax.transforms import TRANSFORMS, Phase, build_pipeline, channel_units
from tests.support import assert_close, assert_trees_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, field_spec, run_on_mesh
from tests.training.tiny import tiny_config
from tests.transforms.cases import (
    CONCAT,
    LEVELS,
    LSM,
    SP,
    TP,
    TSI,
    T,
    group,
    postblocks,
    preblocks,
)
from tests.transforms.toys import (
    INPUT,
    MAPS,
    MIXING,
    NUM_STEPS,
    TARGET,
    TOYS,
    forecast,
    sections,
)

LAT, LON = 13, 6
ROOTS = {"type": "sqrt_transform", "args": {"variables": []}}
LATITUDE = np.linspace(80.0, -85.0, LAT)


@pytest.mark.parametrize(
    ("blocks", "texts"),
    [
        (
            {"norm": {"type": "era5_normlizer"}, "concat": CONCAT},
            [
                "preblocks.per_step.norm.type",
                "there are: ",
                "nearest: 'era5_normalizer'",
            ],
        ),
        (
            {
                "regrid": {"type": "regird"},
                "concat": {"type": "concat", "args": {"x": 1}},
            },
            [
                "preblocks.per_step.regrid.type",
                "'regird' is not available",
                "preblocks.per_step.concat.args.x: unknown key",
            ],
        ),
        (
            {"norm": {"type": "era5_normalizer", "args": {"mean_pth": "m"}}},
            ["the nearest known key is 'mean_path'", "std_path"],
        ),
    ],
)
def test_all_config_errors_at_once(blocks, texts):
    with pytest.raises(ConfigError, match="problem") as error:
        preblocks(**blocks)
    for text in texts:
        assert text in str(error.value)


def test_unknown_postblock():
    with pytest.raises(ConfigError, match="'tracer_fixr' is not available; there are:"):
        postblocks(fix={"type": "tracer_fixr"})


@pytest.mark.parametrize(
    "blocks",
    [{}, {"concat": CONCAT, "late": ROOTS}, {"a": CONCAT, "b": CONCAT}],
)
def test_the_chain_ends_with_concat(blocks):
    preblocks(concat=CONCAT, late={"type": "to_device"})  # as CREDIT
    with pytest.raises(ValueError, match="must end with one block of type concat"):
        preblocks(**blocks)


def test_two_normalizers(files, batch):
    """Both are applied in order, as in CREDIT."""
    norm = {"type": "era5_normalizer", "args": files}
    twice = preblocks(a=norm, b=norm, concat=CONCAT).run(Phase.BEFORE_STEP, batch)["y"]
    once = preblocks(a=norm, concat=CONCAT).run(Phase.BEFORE_STEP, batch)
    (normalizer, _) = preblocks(a=norm, concat=CONCAT).blocks
    again = normalizer.transform.normalize(T, once["y"][:, :LEVELS])
    assert np.array_equal(twice[:, :LEVELS], again)


@pytest.fixture
def toys(monkeypatch):
    for section, transforms in TOYS.items():
        for name, transform in transforms.items():
            monkeypatch.setitem(TRANSFORMS[section], name, transform)


def pipeline_of(pre, post):
    return build_pipeline(parse(PreblocksConfig, pre), parse(PostblocksConfig, post))


def initial_state(dtype):
    counts = {T: LEVELS, SP: 1, LSM: 1, TSI: 1}
    fields = {
        key: draw((2, count, 1, LAT, LON), seed=i, dtype=dtype)
        for i, (key, count) in enumerate(counts.items())
    }
    fields[SP] = fields[SP] + 6
    return {key: np.asarray(field, dtype) for key, field in fields.items()}


def run_forecast(pipeline, mesh=None, dtype=np.float32):
    """Returns last T and SP, TP of all steps, and a gradient by the initial T."""
    fields = initial_state(dtype)
    context = field_context(LAT, mesh)

    def run(*arrays):
        own = dict(zip(fields, arrays, strict=True))

        def objective(temperature):
            last, rain = forecast(pipeline, own | {T: temperature}, context)
            total = context.reducer.mean(jnp.square(last[T] - 1.0))
            return total + context.reducer.mean(jnp.square(last[SP])), (last, rain)

        grads, (last, rain) = jax.grad(objective, has_aux=True)(own[T])
        return last[T], last[SP], rain, grads

    if mesh is None:
        found = jax.jit(run)(*map(jnp.asarray, fields.values()))
    else:
        specs = field_spec(mesh)
        found = run_on_mesh(run, mesh, *fields.values(), out_specs=specs)
    return jax.tree.map(lambda x: np.asarray(x)[..., :LAT, :], found)


def test_every_phase_of_a_forecast(toys, mild_files):
    """Against an explicit NumPy implementation of the same steps."""
    pipeline = pipeline_of(*sections(mild_files, LATITUDE))
    with jax.enable_x64(True):
        temperature, pressure, rain, _ = run_forecast(pipeline, dtype=np.float64)
    fields = initial_state(np.float64)
    (normalizer,) = (
        each.transform for each in pipeline.blocks if each.type == "era5_normalizer"
    )
    weights = np.cos(np.deg2rad(LATITUDE))[:, None]
    mean = lambda x: (x * weights).mean(axis=(3, 4), keepdims=True)  # noqa: E731
    fields[T] = fields[T] + 0.5
    for step in range(NUM_STEPS):
        x = [normalizer.normalize(key, fields[key]) for key in INPUT]
        mixed = np.einsum("oc,bctyx->botyx", MIXING, np.concatenate(x, axis=1))
        y = np.tanh(mixed + 0.1 * np.roll(mixed, 1, axis=-1))
        new = {key: normalizer.denormalize(key, y[:, TARGET[key]]) for key in TARGET}
        fields[SP], before = new[SP] * mean(fields[SP]) / mean(new[SP]), fields[SP]
        assert_close(mean(fields[SP]), mean(before), 1e-12, "mass in numpy")
        fields[T] = new[T]
        assert_close(rain[step], new[TP], 1e-12, f"TP of step {step}")
    assert_close(temperature, fields[T], 1e-12, "T")
    assert_close(pressure, fields[SP], 1e-12, "SP")
    total = pipeline.run(Phase.AFTER_ROLLOUT, {"steps": rain})["rain"]
    assert_close(total, sum(rain), 1e-12, "rain of all steps, on the host")


@pytest.mark.slow(but=["4"])
@pytest.mark.parametrize("num_shards", [2, 4, 8])
def test_same_on_every_mesh(num_shards, toys, mild_files):
    pipeline = pipeline_of(*sections(mild_files, LATITUDE))
    compare(pipeline, make_mesh(domain=num_shards), np.float32, 1e-6, 1e-5)


def test_same_in_float64(toys, mild_files):
    pipeline = pipeline_of(*sections(mild_files, LATITUDE))
    with jax.enable_x64(True):
        compare(pipeline, make_mesh(dp=2, domain=4), np.float64, 1e-12, 1e-12)


def compare(pipeline, mesh, dtype, tolerance, gradient_tolerance):
    serial, sharded = (
        run_forecast(pipeline, None, dtype),
        run_forecast(pipeline, mesh, dtype),
    )
    shards = dict(mesh.shape)
    for name, a, b in zip(("T", "SP"), sharded[:2], serial[:2], strict=True):
        assert a.dtype == dtype
        assert_close(a, b, tolerance, f"{name} on {shards}")
    for step in range(NUM_STEPS):
        assert_close(
            sharded[2][step], serial[2][step], tolerance, f"TP, step {step} on {shards}"
        )
    assert_close(sharded[3], serial[3], gradient_tolerance, f"gradient on {shards}")


def test_a_phase_on_the_host_as_traced(toys, mild_files):
    """Transforms that can run on the host or traced give equal results in both."""
    pipeline = pipeline_of(*sections(mild_files, LATITUDE))
    tree = {"input": {"S": initial_state(np.float32)}, **MAPS}
    host = pipeline.run(Phase.BEFORE_STEP, pipeline.run(Phase.INITIAL, tree))["x"]
    assert isinstance(host, np.ndarray)

    @jax.jit
    def traced(fields):
        context = field_context(LAT)
        tree = {"input": {"S": fields}, **MAPS}
        return pipeline.run(
            Phase.BEFORE_STEP, pipeline.run(Phase.INITIAL, tree, context), context
        )["x"]

    assert_close(traced(tree["input"]["S"]), host, 1e-5, "x")


def test_transforms_declare_where_they_run(toys, mild_files):
    pipeline = pipeline_of(*sections(mild_files, LATITUDE))
    tree = {"y_pred": np.zeros((1, LEVELS + 2, 1, LAT, LON)), **MAPS}
    text = (
        "postblocks.per_step runs on the host, but these transforms run in the traced "
        "step only: postblocks.per_step.fixer (type mass_fixer)"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        pipeline.run(Phase.AFTER_STEP, tree)
    text = "post_rollout runs in the traced step, but these transforms run on the host"
    with pytest.raises(ValueError, match=text):
        pipeline.run(Phase.AFTER_ROLLOUT, tree, field_context(LAT))
    both = {"fixer": {"type": "center_output"}, "again": {"type": "read_again"}}
    text = (
        "postblocks.per_step cannot run in one place: on the host only "
        "postblocks.per_step.again; in the traced step only postblocks.per_step.fixer"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        postblocks(**both)
    with pytest.raises(ValueError, match="per_step runs in the traced step, but"):
        postblocks(again={"type": "read_again"}).postprocess(INPUT, TARGET)


def test_transforms_declare_their_phases(toys):
    late = {"warm": {"type": "warm", "args": {"by": 1.0}}, "concat": CONCAT}
    with pytest.raises(ConfigError, match=r"per_step\.warm\.type: warm belongs into "):
        preblocks(**late)
    with pytest.raises(ConfigError, match="postblock type 'warm' is not available"):
        postblocks(warm=late["warm"])


def test_no_postblocks_no_postprocess():
    assert preblocks(concat=CONCAT).postprocess(INPUT, TARGET) is None


def test_postblocks_of_a_step_give_named_fields():
    """The function used by training and `predict`: the model's output by variable."""
    pipeline = postblocks(reconstruct={"type": "reconstruct"})
    y = draw((2, LEVELS + 2, 1, LAT, LON))
    named = pipeline.run(Phase.AFTER_STEP, {"y_pred": y, **MAPS})["y_processed"]["S"]
    assert {key: x.shape[1] for key, x in named.items()} == {T: LEVELS, SP: 1, TP: 1}
    traced = jax.jit(
        lambda y: pipeline.postprocess(INPUT, TARGET)(
            {"y_pred": y}, field_context(LAT)
        )["y_processed"]["S"]
    )(y)
    for key, field in named.items():
        assert np.array_equal(field, traced[key]), key


def first_update(world, folder, domain, **postblocks):
    """Returns loss and new parameters of one training step."""
    config = tiny_config(
        world,
        folder,
        postblocks={"per_step": postblocks},
        trainer__parallelism={"data": "none", "tensor": 1, "domain": domain},
    )
    plan = plan_run(build_config(config), num_devices=domain)
    setup = prepare(plan, jax.devices()[:domain])
    steps = setup.steps()
    batch = steps.place_train([next(setup.train_loader.epoch(0))])
    state, info = steps.train(setup.fresh_state(), batch)
    return np.asarray(info["loss"]), jax.tree.map(np.asarray, state.params)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_model", "toys")
def test_postblocks_run_in_the_training_step(world, tmp_path):
    plain = first_update(world, tmp_path, 1)
    named = first_update(world, tmp_path, 1, reconstruct={"type": "reconstruct"})
    chex.assert_trees_all_equal(named, plain)  # named fields change no number
    center = {"center": {"type": "center_output"}}
    serial = first_update(world, tmp_path, 1, **center)
    assert abs(serial[0] - plain[0]) > 1e-3, "the loss is that of the transformed"
    sharded = first_update(world, tmp_path, 4, **center)
    assert_close(sharded[0], serial[0], 1e-6, "loss on 4 shards")
    assert_trees_close(sharded[1], serial[1], 1e-5, "parameters after a step")


def test_errors_of_files_name_the_block():
    concat = {"concat": {"type": "concat"}}
    levels = {"level_info_file": "no_such_levels.nc", "output_name": "A/x/3d/Z"}
    blocks = {"height": {"type": "geopotential_diagnostic", "args": levels}}
    with pytest.raises(
        FileNotFoundError, match=r"^postblocks\.per_step\.height: .*no_such_levels\.nc"
    ):
        build_pipeline(
            parse(PreblocksConfig, {"per_step": concat}),
            parse(PostblocksConfig, {"per_step": blocks}),
        )


def test_derived_fields_are_described():
    """As the variables that they are made of, also where these have other names."""
    keys = [f"A/prognostic/3d/{name}" for name in ("T", "Q")]
    rename = {"mapping": {"B/prognostic/3d/Q": keys[1]}}
    levels = {
        "interp_variables": [keys[1]],
        "temperature_var": keys[0],
        "geopotential_var": "A/derived_diagnostic/3d/Z",
    }
    blocks = {
        "z": ("geopotential_diagnostic", {"output_name": levels["geopotential_var"]}),
        "msl": ("mslp_diagnostic", {"output_name": "A/derived_diagnostic/2d/MSL"}),
        "p": ("pressure_interp_diagnostic", levels),
    }
    pipeline = pipeline_of(
        {"per_step": {"names": {"type": "rename", "args": rename}, "concat": CONCAT}},
        {"per_step": {k: {"type": t, "args": args} for k, (t, args) in blocks.items()}},
    )
    humidity = {"long_name": "Humidity", "units": "kg kg**-1"}
    found = pipeline.described({"B/prognostic/3d/Q": humidity, keys[0]: {"units": "C"}})
    made = {key.split("/")[3]: own for key, own in found.items() if key[0] == "A"}
    long_names = {name: own.get("long_name") for name, own in made.items()}
    assert long_names == {
        "T": None,
        "Q": "Humidity",
        "Z": "Geopotential",
        "MSL": "Mean sea level pressure",
        "T_PRES": "Temperature on pressure levels",
        "Q_PRES": "Humidity on pressure levels",
        "Z_PRES": "Geopotential on pressure levels",
    }
    units = {name: own["units"] for name, own in made.items()}
    assert units["Z"] == units["Z_PRES"] == "m**2 s**-2"
    assert units["T_PRES"] == "C", "as the data files say"
    assert made["MSL"]["standard_name"] == "air_pressure_at_mean_sea_level"


def test_units_without_a_normalizer():
    units = channel_units(preblocks(concat=CONCAT), [group(T, 2)])
    fields = np.arange(8.0).reshape(1, 2, 2, 2)
    assert np.array_equal(units.normalize(fields), fields)
    assert np.array_equal(units.denormalize(fields), fields)
