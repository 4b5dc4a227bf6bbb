"""Functions of other libraries as models, on data-parallel meshes and in whole runs."""

from __future__ import annotations

import re
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
from credit_jax.nn.low_rank import LowRank
from credit_jax.ops.compensated import joint_error
from credit_jax.parallel.mesh.dims import ParallelDims
from tests.data.world import NUM_LAT, NUM_LON, raw_config, write_world
from tests.support.custom_objects import no_objects_left
from tests.support.meshes import dealt

__all__ = ["no_objects_left"]

X, Y = (3, 1, 6, 16), (2, 1, 6, 16)
WIDTH, SAMPLES, UPDATES = 64, 8, 20
MESHES = {
    "dp8": (ParallelDims(dp_replicate=8, world_size=8), 1),
    "fsdp8": (ParallelDims(dp_shard=8, world_size=8), 1),
    "fsdp4 twice": (ParallelDims(dp_shard=4, world_size=4), 2),
}


def channels_last(x):
    return jnp.moveaxis(x[:, :, 0], 1, -1)


def channels_first(y):
    return jnp.moveaxis(y, -1, 1)[:, :, None]


def plain():
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = (3, WIDTH), (WIDTH, WIDTH), (WIDTH, 2)
    params = [
        {"w": 0.3 * jax.random.normal(key, size), "b": jnp.zeros(size[1])}
        for key, size in zip(keys, sizes, strict=True)
    ]

    def apply(params, x):
        h = channels_last(x)
        for layer in params[:-1]:
            h = jax.nn.gelu(h @ layer["w"] + layer["b"][None, None, None])
        return channels_first(h @ params[-1]["w"] + params[-1]["b"][None, None, None])

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
    variables = model.init(jax.random.key(0), jnp.zeros((1, 6, 16, 3)))

    def apply(params, x):
        return channels_first(model.apply(params, channels_last(x)))

    return apply, variables


def of_equinox():
    eqx = pytest.importorskip("equinox")
    # A tree with a static leaf: the activation is a function.
    mlp = eqx.nn.MLP(3, 2, WIDTH, 2, activation=jax.nn.gelu, key=jax.random.key(0))

    def apply(mlp, x):
        of_points = jax.vmap(jax.vmap(jax.vmap(mlp)))
        return channels_first(of_points(channels_last(x)))

    return apply, mlp


def of_haiku():
    hk = pytest.importorskip("haiku")

    def forward(x):
        h = jax.nn.gelu(hk.Conv2D(WIDTH, 3)(x))
        return hk.Linear(2)(hk.LayerNorm(-1, True, True)(h))

    model = hk.without_apply_rng(hk.transform(forward))
    params = model.init(jax.random.key(0), jnp.zeros((1, 6, 16, 3)))

    def apply(params, x):
        return channels_first(model.apply(params, channels_last(x)))

    return apply, params


def of_jraph():
    """Encoder, processor and decoder on a coarser mesh, as of GraphCast."""
    hk, jraph = pytest.importorskip("haiku"), pytest.importorskip("jraph")
    lat, lon = np.meshgrid(np.linspace(-75, 75, 6), np.arange(16) * 22.5, indexing="ij")
    grid = np.stack([lat.ravel(), lon.ravel()], 1)
    mesh = grid[::7]
    distance = np.abs(grid[:, None] - mesh)
    distance[..., 1] = np.minimum(distance[..., 1], 360 - distance[..., 1])
    to_mesh = np.stack([np.arange(len(grid)), distance.sum(-1).argmin(1)])
    of_mesh = np.stack(np.nonzero(distance.sum(-1)[::7] < 80))
    num = len(grid) + len(mesh)

    def mlp(*parts):
        h = jnp.concatenate([part for part in parts if part is not None], -1)
        return hk.LayerNorm(-1, True, True)(hk.nets.MLP([16, 16])(h))

    def network(nodes, edges):
        graph = jraph.GraphsTuple(
            nodes=nodes,
            edges=jnp.ones((edges.shape[1], 1)),
            senders=edges[0],
            receivers=edges[1],
            n_node=jnp.array([num]),
            n_edge=jnp.array([edges.shape[1]]),
            globals=None,
        )
        return jraph.GraphNetwork(
            update_edge_fn=lambda edge, sent, received, _: mlp(edge, sent, received),
            update_node_fn=lambda node, _, received, __: node + mlp(node, received),
        )(graph).nodes

    def forward(x):
        h = hk.Linear(16)(x.reshape(3, -1).T)
        h = jnp.concatenate([h, jnp.zeros((len(mesh), 16))])
        h = network(h, to_mesh + np.array([[0], [len(grid)]]))
        for _ in range(2):
            h = network(h, of_mesh + len(grid))
        h = network(h, to_mesh[::-1] + np.array([[len(grid)], [0]]))
        return hk.Linear(2)(h[: len(grid)]).T.reshape(Y)

    model = hk.without_apply_rng(hk.transform(forward))
    params = model.init(jax.random.key(0), jnp.zeros(X))
    return jax.vmap(model.apply, (None, 0)), params


LIBRARIES = {
    "plain": plain,
    "nnx": of_nnx,
    "linen": of_linen,
    "equinox": of_equinox,
    "haiku": of_haiku,
    "jraph": of_jraph,
}


def mse(tree, context):
    return context.mean(jnp.square(tree["y_pred"] - tree["y"]))


def batches(num, accumulate=1, ranks=1):
    """Samples of each update; rank r of n reads samples r, r + n, ... of a batch."""
    rng = np.random.default_rng(0)
    for _ in range(num):
        fields = {"x": rng.standard_normal((SAMPLES, *X), np.float32)}
        fields["y"] = fields["x"][:, :2] * 0.5 + 0.1
        yield {
            name: x.reshape(accumulate, -1, *x.shape[1:])[
                :, dealt(SAMPLES // accumulate, ranks)
            ]
            for name, x in fields.items()
        }


def trained(wrapped, dims, accumulate=1, updates=UPDATES):
    """Losses, weights and bytes of the optimizer on the first device."""
    model = credit_jax.build_parallel_model(wrapped, dims)
    optimizer = optax.adamw(1e-2)
    step = credit_jax.make_train_step(model, optimizer, mse, accumulate=accumulate)
    state = credit_jax.init_state(model, optimizer, jax.random.key(0))
    specs, losses = model.batch_specs(stacked=True), []
    for batch in batches(updates, accumulate, dims.batch_size):
        placed = {
            name: jax.device_put(x, jax.NamedSharding(model.mesh, specs[name]))
            for name, x in batch.items()
        }
        state, info = step(state, placed)
        losses.append(float(jnp.mean(info["loss"])))
    arrays = jax.tree.leaves(state.opt_state)
    num_bytes = sum(x.addressable_shards[0].data.nbytes for x in arrays)
    return np.array(losses), jax.tree.map(np.asarray, state.params), num_bytes


@cache
def of_library(library):
    return credit_jax.wrap(*LIBRARIES[library](), X, Y)


@cache
def on_one_device(library):
    return trained(of_library(library), ParallelDims())


ONE_OF_EACH = ("plain-dp8", "nnx-fsdp8", "linen-fsdp4 twice", "equinox-fsdp8")
ONE_OF_EACH += ("haiku-dp8", "jraph-fsdp8")


@pytest.mark.slow(but=[*ONE_OF_EACH])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_updates_equal_those_of_one_device(library, mesh):
    dims, accumulate = MESHES[mesh]
    losses, weights, _ = trained(of_library(library), dims, accumulate)
    expected, weights_of_one, _ = on_one_device(library)
    assert expected[-1] < 0.5 * expected[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert joint_error(weights, weights_of_one) < 1e-5


def test_the_function_and_its_gradient_are_those_without_a_mesh():
    apply, params = of_nnx()
    wrapped = credit_jax.wrap(apply, params, X, Y)
    dims = ParallelDims(dp_shard=8, world_size=8)
    model = credit_jax.build_parallel_model(wrapped, dims)
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


def test_the_state_of_the_optimizer_is_split_over_devices():
    shape = (3, 1024), (1024, 2)
    keys = jax.random.split(jax.random.key(0))
    params = [0.1 * jax.random.normal(k, s) for k, s in zip(keys, shape, strict=True)]

    def apply(params, x):
        return channels_first(jnp.tanh(channels_last(x) @ params[0]) @ params[1])

    wrapped = credit_jax.wrap(apply, params, X, Y)
    whole, split = (
        trained(wrapped, ParallelDims(dp_shard=n, world_size=n), updates=1)[2]
        for n in (1, 8)
    )
    assert split < 1.01 * whole / 8


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
    losses = [
        trained(wrapped, ParallelDims(dp_replicate=n, world_size=n), updates=3)[0]
        for n in (1, 4)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    model = credit_jax.build_parallel_model(wrapped, ParallelDims())
    x = next(batches(1))["x"][0]
    y = model.apply(*model.init(jax.random.key(0)), {"x": x})
    assert keys[-1] is None
    np.testing.assert_allclose(y, apply(params, x, None), rtol=1e-6)
    noisy = credit_jax.wrap(apply, params, X, Y, noise=True)
    model = credit_jax.build_parallel_model(noisy, ParallelDims())
    weights = model.init(jax.random.key(0))
    members = [
        model.apply(*weights, {"x": x}, Noise(jax.random.key(i))) for i in (1, 2)
    ]
    assert np.abs(members[0] - members[1]).max() > 0.1


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_loss_of_the_model_takes_the_place_of_that_of_the_step(ranks):
    apply, params = plain()

    def loss(params, x, y):
        return jnp.square(apply(params, x) - y).mean((1, 2, 3, 4))

    def denoising(params, x, y, rng):
        noise = jax.random.normal(rng, x.shape)
        return 2 * loss(params, x + noise, y)

    dims = ParallelDims(dp_shard=ranks, world_size=ranks)
    losses, weights, _ = trained(
        credit_jax.wrap(apply, params, X, Y, loss=loss), dims, updates=3
    )
    expected, expected_weights, _ = trained(of_library("plain"), dims, updates=3)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert joint_error(weights, expected_weights) < 1e-6
    wrapped = credit_jax.wrap(apply, params, X, Y, loss=denoising)
    losses, weights, _ = trained(wrapped, dims, updates=3)
    of_one, weights_of_one, _ = trained(wrapped, ParallelDims(), updates=3)
    np.testing.assert_allclose(losses, of_one, rtol=1e-6)
    assert joint_error(weights, weights_of_one) < 1e-5
    assert losses[0] > 2 * expected[0]


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
    _, weights, _ = trained(wrapped, ParallelDims(), updates=2)
    tree = wrapped.tree(weights)
    assert tree["a"] is tree["b"]
    assert np.abs(tree["a"] - matrix).max() > 1e-3


def test_activation_checkpointing_recomputes_all_but_saved_values():
    calls = []

    def apply(params, x):
        h = jnp.sin(channels_last(x) @ params)
        h = jax.ad_checkpoint.checkpoint_name(h, "hidden")
        jax.debug.callback(lambda: calls.append(1))
        return channels_first(jnp.sin(h)[..., :2])

    params = jnp.ones((3, 4))
    gradients = []
    for mode, saved in (("none", ()), ("full", ()), ("full", ("hidden",))):
        wrapped = credit_jax.wrap(apply, params, X, Y, saved=saved)
        model = credit_jax.build_parallel_model(wrapped, ParallelDims(), ac_mode=mode)
        weights, state = model.init(jax.random.key(0))
        x = jnp.asarray(next(batches(1))["x"][0])

        def loss(weights, model=model, state=state, x=x):
            return jnp.sum(jnp.square(model.apply(weights, state, {"x": x})))

        program = jax.jit(jax.grad(loss)).lower(weights).as_text()
        gradients.append((jax.grad(loss)(weights), program.count("stablehlo.sine")))
    (first, plain), (second, full), (third, partly) = gradients
    for other in (second, third):
        jax.tree.map(np.testing.assert_array_equal, first, other)
    assert plain == partly < full


def test_adapters_leave_the_matrices():
    wrapped = of_library("plain")
    low_rank = LowRank(2, 1.0, frozenset({"1/w"}))
    others = frozenset(wrapped.param_specs) - {"1/w"}
    adapted = credit_jax.ModelDef(
        wrapped.config, wrapped.make, frozen=others | {"1/w"}, low_rank=low_rank
    )
    _, weights, _ = trained(adapted, ParallelDims(dp_shard=2, world_size=2), updates=2)
    for path, value in wrapped.initial.items():
        np.testing.assert_array_equal(weights[path], value)
    assert np.abs(weights["1/w/lora_b"]).max() > 0


def zeros(params, x):
    return jnp.zeros((len(x), *Y))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"params": 1.0, "batch_stats": {"mean": np.ones(2)}}, "of batch_stats: a fun"),
        ({"n": nnx.BatchStat(jnp.ones(2))}, "params has n, of BatchStat"),
        ({"a/b": np.ones(2), "a": {"b": np.ones(2)}}, "two leaves have the path 'a/b'"),
    ],
)
def test_params_that_a_function_cannot_have(params, message):
    with pytest.raises(ValueError, match=message):
        credit_jax.wrap(zeros, params, X, Y)


@pytest.mark.parametrize("of_batch", [False, True])
def test_the_certificate_finds_a_mean_over_the_samples_of_a_shard(of_batch):
    apply, params = plain()

    def centered(params, x):
        return apply(params, x - of_batch * x.mean(0, keepdims=True))

    wrapped = credit_jax.wrap(centered, params, X, Y)
    assert credit_jax.certify_model(wrapped, meshes=["ddp2"]).passed is not of_batch


def test_shapes_that_are_not_those_of_samples():
    with pytest.raises(ValueError, match=r"x and y are \(3, 6, 16\).*expected shapes"):
        credit_jax.wrap(zeros, {"w": jnp.ones(2)}, (3, 6, 16), Y)


@pytest.mark.parametrize("axis", ["tp", "domain"])
def test_meshes_that_split_samples_or_layers(axis):
    dims = ParallelDims(**{axis: 2}, world_size=2)
    with pytest.raises(ValueError, match=rf"samples: got {axis} 2, expected 1"):
        credit_jax.build_parallel_model(of_library("plain"), dims)


def test_a_loss_that_is_not_of_samples():
    apply, params = plain()
    wrapped = credit_jax.wrap(apply, params, X, Y, loss=lambda p, x, y: jnp.sum(y))
    with pytest.raises(ValueError, match=r"loss returns \(\) .*expected \(1,\)"):
        credit_jax.build_parallel_model(wrapped, ParallelDims())


def test_an_output_of_another_shape():
    wrapped = credit_jax.wrap(lambda params, x: x, {"w": jnp.ones(2)}, X, Y)
    with pytest.raises(ValueError, match=r"returns \(1, 3, 1.*expected \(1, 2"):
        credit_jax.build_parallel_model(wrapped, ParallelDims())


# (state, forcing) -> state by modal coefficients, with encoder and decoder.
FILE = """
import jax
import jax.numpy as jnp

NUM_STATE = 5  # U, T, SP; then come forcings


def make(x, y, width=8):
    keys = jax.random.split(jax.random.key(0))
    shapes = {"in": (x.shape[0], width), "out": (width, y.shape[0])}
    params = {n: jax.random.normal(k, shapes[n]) for n, k in zip(shapes, keys)}

    def apply(params, x):
        modes = jnp.fft.rfft(jnp.moveaxis(x, 1, -1), axis=3)
        state, forcing = modes[..., :NUM_STATE], modes[..., NUM_STATE:]
        h = state @ params["in"][:NUM_STATE] + forcing @ params["in"][NUM_STATE:]
        h = jnp.fft.rfft(jnp.tanh(jnp.fft.irfft(h, x.shape[-1], axis=3)), axis=3)
        h = jnp.fft.irfft(h @ params["out"], x.shape[-1], axis=3)
        return jnp.moveaxis(h, -1, 1)

    return apply, params
"""


@pytest.mark.usefixtures("no_objects_left")
def test_a_factory_that_a_config_names(tmp_path):
    """Trained, killed at an epoch and resumed, forecast; channels are of the data."""
    write_world(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    section = {"type": f"{tmp_path}/mine.py:make", "args": {"width": 16}}
    section |= {"image_height": NUM_LAT, "image_width": NUM_LON}
    trainer = {"epochs": 2, "batches_per_epoch": 2, "skip_validation": True}
    config = raw_config(tmp_path, model=section)
    config["postblocks"] = {"per_step": {"named": {"type": "reconstruct"}}}
    config["trainer"] |= trainer | {"num_devices": 2}
    config["trainer"]["parallelism"] |= {"data": "fsdp2"}
    runs = []
    for name, options in {"one": [], "two": ["--set", "trainer.num_epoch=1"]}.items():
        run, path = tmp_path / name, tmp_path / f"{name}.yml"
        path.write_text(
            yaml.safe_dump({**config, "save_loc": str(run)}, sort_keys=False)
        )
        assert train(["--config", str(path), *options]) == 0
        if options:
            assert train(["--config", str(path), "--resume"]) == 0
        runs.append(credit_jax.restore(str(run), ParallelDims(), weights="last")[1])
    jax.tree.map(np.testing.assert_array_equal, *runs)
    # Adapters alone, over a stage of single steps and one of forecasts.
    stages = [{"until": "1 epochs"}, {"forecast_len": 2}]
    lora = {"rank": 2, "alpha": 2, "targets": ["in"]}
    config["trainer"] |= {
        "finetune": {"from": str(tmp_path / "one"), "weights": "last", "lora": lora},
        "curriculum": stages,
    }
    config["save_loc"] = str(tmp_path / "tuned")
    (tmp_path / "tuned.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    assert train(["--config", str(tmp_path / "tuned.yml")]) == 0
    _, tuned, _ = credit_jax.restore(config["save_loc"], ParallelDims(), weights="last")
    np.testing.assert_array_equal(tuned["out"], runs[0]["out"])
    assert np.linalg.matrix_rank(tuned["in"] - runs[0]["in"], 1e-6) == 2
    written = load_config(tmp_path / "one" / "model.yml").model
    assert (written["input_channels"], written["output_channels"]) == (7, 6)
    out = tmp_path / "forecast"
    arguments = ["--checkpoint", str(tmp_path / "one"), "--out", str(out)]
    arguments += ["--init-time", "2000-01-01", "--steps", "1", "--format", "zarr"]
    assert forecast(["--config", str(tmp_path / "one/model.yml"), *arguments]) == 0
    assert list(out.iterdir())


WRONG = {
    "return apply": r"the factory returns a function; expected \(apply, params\)",
    "return {}, apply": r"apply is a dict; expected a function",
    "raise KeyError('file')": r"make\(x, y, width=8\) of .*KeyError: 'file' \(.*line 7",
    "return lambda p, x: p['no'], params": r"<lambda> of .*KeyError: 'no' \(.*line 7",
    "return lambda p, x: x, params": r"apply returns \(1, 3, .*expected \(1, 2",
    "return apply, params, lambda p, x, y: jnp.sum(x)": r"loss returns \(\) ",
    "return apply, {'~/mean_ema': params['w']}": r"of mean_ema: a function cannot",
}


@pytest.mark.usefixtures("no_objects_left")
@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_function_is_a_problem_of_the_config(tmp_path, line):
    """Before data are read, with the line of the file."""
    head = "import jax.numpy as jnp\n\n\ndef make(x, y, width=8):\n"
    head += "    params = {'w': jnp.ones(2)}\n"
    head += "    apply = lambda p, x: x[:, :2] * p['w'][0]\n"
    (tmp_path / "wrong.py").write_text(f"{head}    {line}\n")
    keys = {"object_type": "model", "module_path": str(tmp_path / "wrong.py")}
    register_objects({"custom_objects": {"wrong": keys | {"module_name": "make"}}})
    sizes = {"image_height": 6, "image_width": 16, "input_channels": 3}
    model = {"type": "wrong", **sizes, "output_channels": 2}
    with pytest.raises(ValueError, match=WRONG[line]):
        credit_jax.build_parallel_model(model, ParallelDims())
    if line == "return apply":
        with pytest.raises(ValueError, match=r"unexpected keyword argument 'wide'"):
            credit_jax.build_parallel_model(
                model | {"args": {"wide": 3}}, ParallelDims()
            )


def blocks_of_the_page():
    page = (Path(__file__).parents[2] / "docs" / "any_model.md").read_text()
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


@pytest.mark.usefixtures("no_objects_left")
def test_the_page_of_docs(tmp_path, monkeypatch):
    """Its file is a factory; its lines of Python run."""
    monkeypatch.chdir(tmp_path)
    file, lines, _ = blocks_of_the_page()
    (tmp_path / "my_model.py").write_text(file)
    keys = {"object_type": "model", "module_path": "my_model.py", "module_name": "make"}
    register_objects({"custom_objects": {"mine": keys}})
    sizes = {"image_height": 6, "image_width": 16, "input_channels": 3}
    sizes |= {"output_channels": 2, "args": {"width": 4}}
    model = credit_jax.build_parallel_model({"type": "mine", **sizes}, ParallelDims())
    weights = model.init(jax.random.key(0))
    assert model.apply(*weights, {"x": jnp.ones((2, *X))}).shape == (2, *Y)
    names = {}
    exec(lines, names)
    assert names["params_as_given"]["mix"].shape == (4, 4)


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
        losses, weights = [], []
        for ranks in (1, 4):
            dims = ParallelDims(dp_shard=ranks, world_size=ranks)
            model = credit_jax.build_parallel_model(wrapped, dims)
            step = credit_jax.make_train_step(model, optax.adam(1e-4), mse)
            state = credit_jax.init_state(model, optax.adam(1e-4), jax.random.key(0))
            placed = credit_jax.place_batch(batch, model.mesh)
            for _ in range(2):
                state, info = step(
                    state, {n: field[None] for n, field in placed.items()}
                )
                losses.append(float(info["loss"][0]))
            weights.append(jax.tree.map(np.asarray, state.params))
    np.testing.assert_allclose(losses[2:], losses[:2], rtol=1e-6)
    assert losses[1] < losses[0]
    assert joint_error(*weights) < 1e-5
