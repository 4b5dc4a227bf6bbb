"""Functions of other libraries as models, on data-parallel meshes and in whole runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import yaml
from flax import linen, nnx

import credit_jax
from credit_jax.cli.forecast import main as forecast
from credit_jax.cli.train import main as train
from credit_jax.config import load_config
from credit_jax.config.custom_objects import register_objects
from credit_jax.nn.context import Noise
from credit_jax.ops.compensated import joint_error
from credit_jax.parallel.mesh.dims import ParallelDims
from tests.data.world import NUM_LAT, NUM_LON, raw_config, write_world
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support.code_blocks import code_blocks
from tests.support.meshes import dealt
from tests.training.toy_runs import mse

CASES = Cases("function")
ONE, KEY = ParallelDims(), jax.random.key(0)

X, Y = (3, 1, 6, 16), (2, 1, 6, 16)
WIDTH, SAMPLES, UPDATES = 64, 8, 20


def fsdp(ranks):
    return ParallelDims(dp_shard=ranks, world_size=ranks)


MESHES = {
    "dp8": (ParallelDims(dp_replicate=8, world_size=8), 1),
    "fsdp8": (fsdp(8), 1),
    "fsdp4 twice": (fsdp(4), 2),
}


def channels_last(x):
    return jnp.moveaxis(x[:, :, 0], 1, -1)


def channels_first(y):
    return jnp.moveaxis(y, -1, 1)[:, :, None]


def plain():
    keys = jax.random.split(KEY)
    sizes = (3, WIDTH), (WIDTH, 2)
    params = [
        {"w": 0.3 * jax.random.normal(key, size), "b": jnp.zeros(size[1])}
        for key, size in zip(keys, sizes, strict=True)
    ]

    def apply(params, x):
        h, (first, last) = channels_last(x), params
        h = jax.nn.gelu(h @ first["w"] + first["b"][None, None, None])
        return channels_first(h @ last["w"] + last["b"][None, None, None])

    return apply, params


def of_nnx():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(3, WIDTH, (3, 3), rngs=rngs)
            self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
            self.out = nnx.Linear(WIDTH, 2, rngs=rngs)

        def __call__(self, x):
            return self.out(jax.nn.gelu(self.norm(self.conv(x))))

    graph, params = nnx.split(Model(nnx.Rngs(0)), nnx.Param)

    def apply(params, x):
        return channels_first(nnx.merge(graph, params)(channels_last(x)))

    return apply, params


def of_linen():
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            h = jax.nn.gelu(linen.Conv(WIDTH, (3, 3))(x))
            return linen.Dense(2)(linen.LayerNorm()(h))

    model = Model()
    variables = model.init(KEY, jnp.zeros((1, 6, 16, 3)))

    def apply(params, x):
        return channels_first(model.apply(params, channels_last(x)))

    return apply, variables


def of_equinox():
    eqx = pytest.importorskip("equinox")
    # A tree with a static leaf: the activation is a function.
    mlp = eqx.nn.MLP(3, 2, WIDTH, 2, activation=jax.nn.gelu, key=KEY)

    def apply(mlp, x):
        of_points = jax.vmap(jax.vmap(jax.vmap(mlp)))
        return channels_first(of_points(channels_last(x)))

    return apply, mlp


def of_jraph():
    """Messages along rows and columns, by networks of Haiku."""
    hk, jraph = pytest.importorskip("haiku"), pytest.importorskip("jraph")
    points = np.arange(6 * 16).reshape(6, 16)
    ends = [
        (np.roll(points, shift, axis), points) for shift in (-1, 1) for axis in (0, 1)
    ]
    senders, receivers = (np.stack(x).ravel() for x in zip(*ends, strict=True))

    def mlp(*parts):
        h = jnp.concatenate([part for part in parts if part is not None], -1)
        return hk.LayerNorm(-1, True, True)(hk.nets.MLP([16, 16])(h))

    def forward(x):
        nodes = hk.Linear(16)(x.reshape(3, -1).T)
        edges, sizes = jnp.ones((len(senders), 1)), jnp.array([points.size])
        graph = jraph.GraphsTuple(
            *(nodes, edges, receivers, senders, None, sizes, jnp.array([len(senders)]))
        )
        network = jraph.GraphNetwork(
            update_edge_fn=lambda edge, sent, received, _: mlp(edge, sent, received),
            update_node_fn=lambda node, _, received, __: node + mlp(node, received),
        )
        return hk.Linear(2)(network(graph).nodes).T.reshape(Y)

    model = hk.without_apply_rng(hk.transform(forward))
    params = model.init(KEY, jnp.zeros(X))
    return jax.vmap(model.apply, (None, 0)), params


LIBRARIES = {
    **{"plain": plain, "nnx": of_nnx, "linen": of_linen, "equinox": of_equinox},
    "haiku and jraph": of_jraph,
}


def batches(num, accumulate=1, ranks=1):
    """Samples of each update; rank r of n reads samples r, r + n, ... of a batch."""
    rng, order = np.random.default_rng(0), dealt(SAMPLES // accumulate, ranks)
    for _ in range(num):
        x = rng.standard_normal((SAMPLES, *X), np.float32)
        fields = {"x": x, "y": x[:, :2] * 0.5 + 0.1}
        yield {
            name: field.reshape(accumulate, -1, *field.shape[1:])[:, order]
            for name, field in fields.items()
        }


def trained(wrapped, dims, accumulate=1, updates=UPDATES, data=None):
    """Losses and weights."""
    model = credit_jax.build_parallel_model(wrapped, dims)
    optimizer = optax.adamw(1e-4 if data else 1e-2)
    step = credit_jax.make_train_step(model, optimizer, mse, accumulate=accumulate)
    state, losses = credit_jax.init_state(model, optimizer, KEY), []
    for batch in data or batches(updates, accumulate, dims.batch_size):
        state, info = step(state, credit_jax.place_batch(batch, model.mesh))
        losses.append(float(jnp.mean(info["loss"])))
    return np.array(losses), jax.tree.map(np.asarray, state.params)


def assert_same(actual, expected, bound=1e-5):
    """Asserts equal losses and weights."""
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)
    assert joint_error(actual[1], expected[1]) < bound


def predict(wrapped, x, *noise):
    model = credit_jax.build_parallel_model(wrapped, ONE)
    return model.apply(*model.init(KEY), {"x": x}, *noise)


@cache
def of_library(library):
    return credit_jax.wrap(*LIBRARIES[library](), X, Y)


@cache
def on_one_device(library):
    return trained(of_library(library), ONE)


@pytest.mark.slow(but=["nnx-fsdp8", "linen-fsdp4 twice"])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_updates_equal_those_of_one_device(library, mesh):
    dims, accumulate = MESHES[mesh]
    expected = on_one_device(library)
    assert expected[0][-1] < 0.5 * expected[0][0]
    assert_same(trained(of_library(library), dims, accumulate), expected)


def test_the_function_and_its_gradient_are_those_without_a_mesh():
    apply, params = of_nnx()
    wrapped = credit_jax.wrap(apply, params, X, Y)
    model = credit_jax.build_parallel_model(wrapped, fsdp(8))
    weights, state = model.init(jax.random.key(1))
    assert wrapped.tree(weights).keys() == params.keys()
    batch = {name: x[0] for name, x in next(batches(1)).items()}
    placed = credit_jax.place_batch(batch, model.mesh)

    def of_mesh(weights):
        y = model.apply(weights, state, {"x": placed["x"]})
        return jnp.mean(jnp.square(y - placed["y"]))

    def alone(params):
        return jnp.mean(jnp.square(apply(params, batch["x"]) - batch["y"]))

    value, gradient = jax.value_and_grad(of_mesh)(weights)
    expected, expected_gradient = jax.value_and_grad(alone)(params)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    flat = credit_jax.wrap(apply, expected_gradient, X, Y).initial
    assert joint_error(gradient, flat) < 1e-6


def test_large_arrays_are_split_over_devices():
    params = [jnp.ones((3, 1024)), jnp.ones((1024, 2))]
    wrapped = credit_jax.wrap(zeros, params, X, Y)
    specs = credit_jax.build_parallel_model(wrapped, fsdp(8)).specs
    assert all("dp_shard" in spec for spec in specs.values())


def test_draws_are_equal_on_every_mesh():
    """Each sample has its own key, in training; `noise` gives one in evaluation."""
    keys = []

    def apply(params, x, rng):
        keys.append(rng)
        h = channels_last(x)
        if rng is not None:
            h = h * jax.random.bernoulli(rng, 0.5, h.shape)
        return channels_first(h @ params)

    params = jnp.ones((3, 2)) / 3
    wrapped = credit_jax.wrap(apply, params, X, Y)
    assert_same(*(trained(wrapped, fsdp(n), updates=3) for n in (1, 4)))
    x = next(batches(1))["x"][0]
    y = predict(wrapped, x)
    assert keys[-1] is None
    np.testing.assert_allclose(y, apply(params, x, None), rtol=1e-6)
    noisy = credit_jax.wrap(apply, params, X, Y, noise=True)
    one, other = (predict(noisy, x, Noise(jax.random.key(i))) for i in (1, 2))
    assert np.abs(one - other).max() > 0.1


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_loss_of_the_model_takes_the_place_of_that_of_the_step(ranks):
    apply, params = plain()

    def loss(params, x, y):
        return jnp.square(apply(params, x) - y).mean((1, 2, 3, 4))

    def denoising(params, x, y, rng):
        noise = jax.random.normal(rng, x.shape)
        return 2 * loss(params, x + noise, y)

    wrapped = credit_jax.wrap(apply, params, X, Y, loss=loss)
    expected = trained(of_library("plain"), fsdp(ranks), updates=3)
    assert_same(trained(wrapped, fsdp(ranks), updates=3), expected, 1e-6)
    wrapped = credit_jax.wrap(apply, params, X, Y, loss=denoising)
    actual = trained(wrapped, fsdp(ranks), updates=3)
    assert_same(actual, trained(wrapped, ONE, updates=3))
    assert actual[0][0] > 2 * expected[0][0]


def test_tied_arrays_are_one_parameter_and_other_leaves_constants():
    matrix = 0.1 * jnp.ones((3, 3))
    params = {"a": matrix, "b": matrix, "steps": np.int32(2), "act": jnp.tanh}

    def apply(params, x):
        h = channels_last(x)
        for _ in range(int(params["steps"])):
            h = params["act"](h @ params["a"])
        return channels_first((h @ params["b"])[..., :2])

    wrapped = credit_jax.wrap(apply, params, X, Y)
    assert list(wrapped.param_specs) == ["a"]
    _, weights = trained(wrapped, ONE, updates=2)
    tree = wrapped.tree(weights)
    assert tree["a"] is tree["b"]
    assert np.abs(tree["a"] - matrix).max() > 1e-3


def test_activation_checkpointing_recomputes_all_but_saved_values():
    def apply(params, x):
        h = jnp.sin(channels_last(x) @ params)
        h = jax.ad_checkpoint.checkpoint_name(h, "hidden")
        return channels_first(jnp.sin(h)[..., :2])

    params = jnp.ones((3, 4))
    gradients = []
    for mode, saved in (("none", ()), ("full", ()), ("full", ("hidden",))):
        wrapped = credit_jax.wrap(apply, params, X, Y, saved=saved)
        model = credit_jax.build_parallel_model(wrapped, ONE, ac_mode=mode)
        weights, state = model.init(KEY)
        x = jnp.asarray(next(batches(1))["x"][0])

        def loss(weights, model=model, state=state, x=x):
            return jnp.sum(jnp.square(model.apply(weights, state, {"x": x})))

        program = jax.jit(jax.grad(loss)).lower(weights).as_text()
        gradients.append((jax.grad(loss)(weights), program.count("stablehlo.sine")))
    (first, plain), (second, full), (third, partly) = gradients
    for other in (second, third):
        jax.tree.map(np.testing.assert_array_equal, first, other)
    assert plain == partly < full


def zeros(params, x):
    return jnp.zeros((len(x), *Y))


CASES.rows(
    lambda params: credit_jax.wrap(zeros, params, X, Y),
    {"params": {"params": 1.0, "batch_stats": {"mean": 2.0}}},
    {"params": {"a/b": np.ones(1), "a": {"b": np.ones(1)}}},
    name="wrap",
)


@CASES.case
def wrap_statistics_of_nnx():
    credit_jax.wrap(zeros, {"n": nnx.BatchStat(jnp.ones(2))}, X, Y)


@CASES.case
def shapes_that_are_not_those_of_samples():
    credit_jax.wrap(zeros, {"w": jnp.ones(2)}, (3, 6, 16), Y)


def split_samples_or_layers(axis):
    dims = ParallelDims(**{axis: 2}, world_size=2)
    credit_jax.build_parallel_model(of_library("plain"), dims)


CASES.rows(split_samples_or_layers, "tp", "domain")


@pytest.mark.slow(but=["True"])
@pytest.mark.parametrize("of_batch", [False, True])
def test_the_certificate_finds_a_mean_over_the_samples_of_a_shard(of_batch):
    apply, params = plain()

    def centered(params, x):
        return apply(params, x - of_batch * x.mean(0, keepdims=True))

    wrapped = credit_jax.wrap(centered, params, X, Y)
    assert credit_jax.certify_model(wrapped, meshes=["ddp2"]).passed is not of_batch


def blocks_of_the_page():
    page = Path(__file__).parents[2] / "docs" / "any_model.md"
    return code_blocks(page.read_text(), "python")


def test_the_factory_of_the_page(tmp_path, monkeypatch):
    """Trained, killed at an epoch and resumed, forecast; channels are of the data."""
    monkeypatch.chdir(tmp_path)
    write_world(tmp_path)
    Path("my_model.py").write_text(blocks_of_the_page()[0])
    section = {"type": "my_model.py:make", "args": {"width": 16}}
    section |= {"image_height": NUM_LAT, "image_width": NUM_LON}
    config = raw_config(tmp_path, model=section)
    config["postblocks"] = {"per_step": {"named": {"type": "reconstruct"}}}
    trainer = {"epochs": 2, "batches_per_epoch": 2, "skip_validation": True}
    config["trainer"] |= trainer | {"num_devices": 2}
    config["trainer"]["parallelism"] |= {"data": "fsdp2"}

    def trained(run, *options):
        path = Path(f"{run}.yml")
        config["save_loc"] = str(tmp_path / run)
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        assert train(["--config", str(path), *options]) == 0
        return credit_jax.restore(config["save_loc"], ONE, weights="last")[1]

    base = trained("one")
    trained("two", "--set", "trainer.num_epoch=1")
    jax.tree.map(np.testing.assert_array_equal, base, trained("two", "--resume"))
    # Adapters alone, over a stage of single steps and one of forecasts.
    lora = {"rank": 2, "alpha": 2, "targets": ["in"]}
    finetune = {"from": str(tmp_path / "one"), "weights": "last", "lora": lora}
    stages = [{"until": "1 epochs"}, {"forecast_len": 2}]
    config["trainer"] |= {"finetune": finetune, "curriculum": stages}
    tuned = trained("tuned")
    np.testing.assert_array_equal(tuned["out"], base["out"])
    assert np.linalg.matrix_rank(tuned["in"] - base["in"], 1e-6) == 2
    written = load_config(Path("one/model.yml")).model
    assert (written["input_channels"], written["output_channels"]) == (7, 6)
    arguments = ["--config", "one/model.yml", "--checkpoint", "one", "--out", "out"]
    arguments += ["--init-time", "2000-01-01", "--steps", "1", "--format", "zarr"]
    assert forecast(arguments) == 0
    assert list(Path("out").iterdir())


def test_the_lines_of_the_page():
    names = {}
    exec(blocks_of_the_page()[1], names)
    assert names["params_as_given"]["mix"].shape == (4, 4)


HEAD = """import jax.numpy as jnp


def make(x, y, width=8):
    params = {'w': jnp.ones(2)}
    apply = lambda p, x: x[:, :2] * p['w'][0]
    """


def make(line, tmp_path, **keys):
    """A wrong function is a problem of the config, before data are read."""
    path = tmp_path / "wrong.py"
    path.write_text(f"{HEAD}{line}\n")
    names = {"object_type": "model", "module_path": str(path), "module_name": "make"}
    register_objects({"custom_objects": {"mine": names}})
    sizes = {"image_height": 6, "image_width": 16, "input_channels": 3}
    section = {"type": "mine", **sizes, "output_channels": 2} | keys
    return lambda: credit_jax.build_parallel_model(section, ONE)


CASES.rows(
    make,
    "return apply",
    "return {}, apply",
    "raise KeyError('file')",
    "return lambda p, x: p['no'], params",
    "return lambda p, x: x, params",
    "return apply, params, lambda p, x, y: jnp.sum(x)",
    "return apply, {'~/mean_ema': params['w']}",
)
CASES.rows(make, {"line": "return apply", "args": {"wide": 3}})


@pytest.mark.slow
def test_neuralgcm_is_fine_tuned_on_four_devices_as_on_one():
    """Its demo's weights and its demo's analysis of ERA5, with noise."""
    neuralgcm = pytest.importorskip("neuralgcm")
    from neuralgcm import demo

    names = {}
    with jax.numpy_rank_promotion("allow"):
        exec(blocks_of_the_page()[2], names)
        with names["FILE"].open("rb") as file:
            checkpoint = names["Checkpoint"](file).load()
        model = neuralgcm.PressureLevelModel.from_checkpoint(checkpoint)
        analysis = demo.load_data(model.data_coords).isel(time=0)
        fields = model.inputs_from_xarray(analysis)
        forcings = model.forcings_from_xarray(analysis)
        parts = [
            fields[n] / names["SCALES"].get(n, 1e-3) for n in model.input_variables
        ]
        parts += [forcings[n] for n in model.forcing_variables]
        x = np.nan_to_num(np.concatenate(parts)).swapaxes(1, 2)[None, :, None]
        noise = np.random.default_rng(0).standard_normal((4, *x.shape[1:]))
        x = (x * (1 + 1e-4 * noise)).astype(np.float32)
        num_y = 37 * len(model.input_variables)
        batch = {"x": x, "y": x[:, :num_y]}
        made = names["make"](None, None)
        wrapped = credit_jax.wrap(*made, x.shape[1:], (num_y, *x.shape[2:]), noise=True)
        data = [{name: field[None] for name, field in batch.items()}] * 2
        one, four = (trained(wrapped, fsdp(n), data=data) for n in (1, 4))
    assert_same(four, one)
    assert one[0][1] < one[0][0]
