"""Selection of implementations: by the mesh's platform, or by the user."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec

import credit_jax
from credit_jax import kernels
from credit_jax.config import load_config
from credit_jax.kernels import use_implementation, use_platform
from credit_jax.models.model_def import multiplies_float8
from credit_jax.parallel.compiler import loops_hold_collectives
from tests.support import make_mesh

X, KERNEL = jnp.zeros((2, 8, 8, 2)), jnp.zeros((4, 4, 2, 3))


def on_mesh(function, mesh=None):
    """Returns the function within a `shard_map` over a mesh."""
    whole = PartitionSpec()
    mesh = mesh or make_mesh(dp=2)
    return jax.shard_map(function, mesh=mesh, in_specs=whole, out_specs=whole)


def program(function):
    """Returns the gradient's program."""
    gradient = jax.grad(lambda x: jnp.sum(function(x)))
    return str(jax.make_jaxpr(gradient)(X))


def conv(x):
    return kernels.conv2d(x, KERNEL, stride=(2, 2))


def is_plain(text):
    """On CPU the gradient of a strided convolution has no dilation."""
    return "lhs_dilation=(2, 2)" in text


def test_it_is_the_one_of_the_mesh():
    assert [is_plain(program(f)) for f in (conv, on_mesh(conv))] == [True, False]


def gpu_mesh(kind="NVIDIA H100"):
    device = AbstractDevice(kind, 132, "gpu")
    return make_mesh(dp=2).abstract_mesh.update(abstract_device=device)


def traced(mesh=None):
    """Platform, implementation and loops of what is traced on a mesh."""
    seen = []

    def look(x):
        loops = loops_hold_collectives()
        seen.append((kernels.platform(), kernels.implementation(), loops))
        return x

    jax.eval_shape(on_mesh(look, mesh), X)
    return seen[0]


def test_platforms_have_their_implementations():
    assert jax.default_backend() == "cpu"
    assert (kernels.platform(), kernels.implementation()) == (None, "xla"), "no mesh"
    with jax.set_mesh(make_mesh(dp=2)):
        assert (kernels.platform(), kernels.implementation()) == ("cpu", "cpu")
    assert traced() == ("cpu", "cpu", False)
    without = AbstractMesh((2,), ("dp",), axis_types=(AxisType.Auto,))
    assert traced(without)[:2] == (None, "xla")
    with jax.sharding.use_abstract_mesh(gpu_mesh()):
        assert kernels.implementation() == "gpu"
        assert kernels.fuses(X.astype(jnp.bfloat16))
        assert not kernels.fuses(X), "fused layers are for sixteen bits"
    with use_implementation("gpu"):
        assert kernels.fuses(X), "the interpreter computes them in any dtype"
    with use_platform("gpu"):
        assert traced() == ("gpu", "xla", True), "a CPU compiles no kernel of a GPU"
    with use_implementation("xla"):
        assert traced() == ("cpu", "xla", False), "loops are free of collectives"


@pytest.mark.parametrize("kind", ["AMD Instinct MI300X", "gfx90a", "Radeon PRO W7900"])
def test_a_gpu_of_another_maker_has_plain_definitions(kind):
    mesh = gpu_mesh(kind)
    device = mesh.abstract_device
    with jax.sharding.use_abstract_mesh(mesh):
        assert (kernels.platform(), kernels.implementation()) == ("rocm", "xla")
        assert loops_hold_collectives()
    assert not kernels.kernel_notes([device])
    assert not multiplies_float8(device)


def test_a_training_step_lowers_for_rocm():
    section = load_config(Path(__file__).parents[2] / "configs" / "demo.yaml").model
    model = credit_jax.build_parallel_model(section, credit_jax.ParallelDims())
    optimizer, config = optax.adamw(1e-3), model.model_def.config

    def mse(tree, context):
        return context.mean((tree["y_pred"] - tree["y"]) ** 2)

    step = credit_jax.make_train_step(model, optimizer, mse)
    new = partial(credit_jax.init_state, model, optimizer)
    grid = 1, config.output.height, config.output.width
    batch = {
        name: jax.ShapeDtypeStruct((1, 1, channels, *grid), jnp.float32)
        for name, channels in (
            ("x", config.input_channels),
            ("y", config.output_channels),
        )
    }
    with use_platform("rocm"):
        state = jax.eval_shape(new, jax.random.key(0))
        exported = export.export(jax.jit(step), platforms=["rocm"])(state, batch)
    assert "stablehlo.convolution" in exported.mlir_module()
    assert "triton" not in exported.mlir_module()


def test_a_chosen_one_holds_on_a_mesh_outside_and_backward():
    """Although the backward pass is traced outside of the context and the mesh."""
    for name in ("xla", "cpu"):
        with use_implementation(name):
            found = [is_plain(program(f)) for f in (conv, on_mesh(conv))]
            y, pull = jax.vjp(conv, X)
        found.append(is_plain(str(jax.make_jaxpr(pull)(y))))
        assert found == [name == "xla"] * 3


def test_a_compiled_function_is_traced_anew_for_another_choice():
    traced = []

    @jax.jit
    def function(x):
        traced.append(kernels.implementation())
        return conv(x)

    for name in ("xla", "cpu", "xla", "cpu"):
        with use_implementation(name):
            function(X)
    function(X)
    assert traced == ["xla", "cpu", "xla"]
