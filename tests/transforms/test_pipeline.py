"""Pipelines: the four phases on the host and on meshes, and errors of configs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.transforms import Phase, Transform, channel_units
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, field_spec, run_on_mesh
from tests.transforms.cases import (
    CONCAT,
    LEVELS,
    LSM,
    SP,
    TP,
    TSI,
    T,
    group,
    pipeline_of,
    preblocks,
)
from tests.transforms.files import MILD
from tests.transforms.toys import (
    INPUT,
    MAPS,
    MIXING,
    NUM_STEPS,
    TARGET,
    forecast,
    sections,
)

LAT, LON = 13, 6
LATITUDE = np.linspace(80.0, -85.0, LAT)


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


def test_every_phase_of_a_forecast(toys):
    """Against an explicit NumPy implementation of the same steps."""
    pipeline = pipeline_of(*sections(MILD, LATITUDE))
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


@pytest.mark.slow(but=["float32-mesh0", "float64-mesh1"])
@pytest.mark.parametrize("mesh", [{"domain": 4}, {"dp": 2, "domain": 4}, {"domain": 8}])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_on_every_mesh(mesh, dtype, toys):
    pipeline = pipeline_of(*sections(MILD, LATITUDE))
    values, gradients = (1e-12, 1e-12) if dtype == np.float64 else (1e-6, 1e-5)
    with jax.enable_x64(dtype == np.float64):
        serial = run_forecast(pipeline, None, dtype)
        sharded = run_forecast(pipeline, make_mesh(**mesh), dtype)
    names = ("T", "SP", *(f"TP of step {step}" for step in range(NUM_STEPS)))
    pairs = [(x[0], x[1], *x[2]) for x in (sharded, serial)]
    for name, a, b in zip(names, *pairs, strict=True):
        assert a.dtype == dtype
        assert_close(a, b, values, f"{name} on {mesh}")
    assert_close(sharded[3], serial[3], gradients, f"gradient on {mesh}")


def test_without_transforms_nothing_changes():
    chain = preblocks(concat=CONCAT, late={"type": "to_device"})  # as CREDIT
    assert chain.postprocess(INPUT, TARGET) is None
    units = channel_units(chain, [group(T, 2)])
    fields = np.arange(8.0).reshape(1, 2, 2, 2)
    assert np.array_equal(units.normalize(fields), fields)
    assert np.array_equal(units.denormalize(fields), fields)


class Halved(Transform):
    """A transform that answers with the defaults."""

    def __call__(self, tree, context=None):
        return {key: value / 2 for key, value in tree.items()}


def test_the_defaults_of_a_transform():
    halved = Halved()
    assert halved({"x": np.ones(1)})["x"] == 0.5
    assert halved.schema_after({"input": []}) == {"input": []}
    assert halved == halved
    assert halved != Halved()
    with pytest.raises(ValueError, match="it has no inverse"):
        halved.inverse({"x": 1})


def test_a_channel_map_gives_the_order(batch):
    """JAX sorts dicts, so that a traced step loses the order of a data set."""
    pipeline, context = preblocks(concat=CONCAT), field_context(3)
    host = pipeline.run(Phase.BEFORE_STEP, batch)
    fields = {
        part: {"S": dict(sorted(batch[part]["S"].items()))}
        for part in ("input", "target")
    }
    found = pipeline.run(Phase.BEFORE_STEP, {**fields, **MAPS}, context)
    assert np.array_equal(found["x"], host["x"])
    assert np.array_equal(found["y"], host["y"])
    with pytest.raises(ValueError, match="a traced batch needs 'input_channel_map'"):
        pipeline.run(Phase.BEFORE_STEP, fields, context)
