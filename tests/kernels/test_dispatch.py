"""Selection of implementations: by the mesh's platform, or by the user."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec

from credit_jax import kernels
from credit_jax.kernels import use_implementation, use_platform
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


def test_outside_of_a_mesh_it_is_the_plain_definition_on_a_cpu_too():
    assert jax.default_backend() == "cpu"
    assert kernels.implementation() == "xla"
    assert kernels.platform() is None


def test_a_mesh_in_scope_is_enough():
    with jax.set_mesh(make_mesh(dp=2)):
        assert (kernels.platform(), kernels.implementation()) == ("cpu", "cpu")


def test_a_mesh_without_devices_has_the_plain_definitions():
    mesh = AbstractMesh((2,), ("dp",), axis_types=(AxisType.Auto,))
    seen = []

    def look(x):
        seen.append((kernels.platform(), kernels.implementation()))
        return x

    jax.eval_shape(on_mesh(look, mesh), X)
    assert seen == [(None, "xla")]


def test_a_gpu_mesh_has_its_kernels_unless_its_programs_are_only_read():
    device = AbstractDevice("NVIDIA H100", 132, "gpu")
    mesh = make_mesh(dp=2).abstract_mesh.update(abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        assert kernels.implementation() == "gpu"
    with use_platform("gpu"), jax.set_mesh(make_mesh(dp=2)):
        assert kernels.implementation() == "xla", "a CPU compiles no kernel of a GPU"


@pytest.mark.parametrize("name", ["xla", "cpu"])
def test_a_chosen_one_holds_on_a_mesh_and_outside(name):
    with use_implementation(name):
        plain = [is_plain(program(f)) for f in (conv, on_mesh(conv))]
    assert plain == [name == "xla"] * 2


def test_the_choice_of_the_forward_is_that_of_the_backward():
    """Although the backward pass is traced outside of the context and the mesh."""
    programs = []
    for name in ("xla", "cpu"):
        with use_implementation(name):
            y, pull = jax.vjp(conv, X)
        programs.append(str(jax.make_jaxpr(pull)(y)))
    assert [is_plain(text) for text in programs] == [True, False]


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


def test_on_gpus_fused_layers_are_for_sixteen_bits():
    device = AbstractDevice("NVIDIA H100", 132, "gpu")
    mesh = make_mesh(dp=2).abstract_mesh.update(abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        assert kernels.fuses(X.astype(jnp.bfloat16))
        assert not kernels.fuses(X)
    with use_implementation("gpu"):
        assert kernels.fuses(X), "the interpreter computes them in any dtype"


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match="is 'cuda'; expected one of xla, cpu, gpu"):
        use_implementation("cuda")


def test_a_program_to_read_has_the_operations_and_loops_of_its_platform():
    seen = []

    def look(x):
        seen.append((kernels.implementation(), loops_hold_collectives()))
        return x

    for name in (None, "gpu"):
        with use_platform(name):
            jax.eval_shape(on_mesh(look), X)
    assert seen == [("cpu", False), ("xla", True)]


def test_plain_definitions_on_a_cpu_mesh_keep_loops_free_of_collectives():
    seen = []

    def look(x):
        seen.append((kernels.implementation(), loops_hold_collectives()))
        return x

    with use_implementation("xla"):
        jax.eval_shape(on_mesh(look), X)
    assert seen == [("xla", False)]
