"""Kernels where JAX has no backend that compiles them."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from credit_jax.kernels import kernel_notes

GPU = SimpleNamespace(platform="gpu")
# On a mesh of GPUs, and with "gpu" chosen, all operations have their plain definitions.
WITHOUT = """
import sys
sys.modules["jax.experimental.pallas.triton"] = None
import warnings
warnings.simplefilter("error")
import jax, jax.numpy as jnp
from types import SimpleNamespace
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from credit_jax import kernels
device = AbstractDevice("NVIDIA H100", 132, "gpu")
mesh = AbstractMesh((1,), ("dp",), axis_types=(AxisType.Auto,))
mesh = mesh.update(abstract_device=device)
x = jnp.ones((2048, 4))
with jax.sharding.use_abstract_mesh(mesh):
    assert kernels.implementation() == "xla"
    assert not kernels.fuses(x)
with kernels.use_implementation("gpu"):
    assert kernels.implementation() == "xla"
    kernels.layer_norm(x, jnp.ones(4), jnp.ones(4))
(note,) = kernels.kernel_notes([SimpleNamespace(platform="gpu")])
print(note)
assert not kernels.kernel_notes([SimpleNamespace(platform="cpu")])
"""


def test_without_the_backend_operations_have_their_plain_definitions() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "has no Pallas Triton" in done.stdout
    assert "all operations have their plain definitions" in done.stdout


def test_with_the_backend_there_is_nothing_to_say() -> None:
    assert kernel_notes([GPU]) == []


@pytest.mark.parametrize("name", ["norm", "window_attention"])
def test_kernels_take_the_backend_from_one_file(name: str) -> None:
    module = __import__(f"credit_jax.kernels.gpu.{name}", fromlist=["_"])
    assert not [key for key in vars(module) if key in ("pl", "triton", "pltriton")]
