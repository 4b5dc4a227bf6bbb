"""Products of float32 models are float32 on GPUs and TPUs: read in lowered programs."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import triton
from jax.lax import Precision

from benchmarks.accuracy.case import ROWS, case_config
from benchmarks.compiled_step import SMALL_MODEL, equations, trace_step
from benchmarks.small_models import placed
from credit_jax.kernels import use_implementation, use_platform
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.nn.context import Noise
from credit_jax.parallel.params.precision import default_mp_policy
from tests.support import make_mesh

# By the name that lowering has: those of `use_platform` and `use_implementation`.
PLATFORMS = {"cuda": ("gpu", "gpu"), "tpu": ("tpu", "xla")}
# The operations that multiply, with the types of their operands at the end of the line.
PRODUCT = re.compile(
    r"^.*(?:stablehlo\.(?:dot_general|dot|convolution)|chlo\.ragged_dot).*$", re.M
)
OPERANDS = re.compile(r"tensor<(?:[0-9?]+x)*(\w+)>")
MOE = {
    **SMALL_MODEL,
    "type": "wxformer_moe",
    "num_experts": 2,
}


@pytest.fixture(autouse=True)
def _compiled_kernels(monkeypatch):
    """Kernels are lowered for the GPU, not for the interpreter of this mesh."""
    # From JAX 0.11 on lowering asks which GPU there is.
    if hasattr(triton, "GpuInfo"):
        info = triton.get_gpu_info_from_version(triton.GpuVersion.H100)
        monkeypatch.setattr(f"{triton.GpuInfo.__module__}.get_gpu_info", lambda: info)


def float32_products(text):
    """The lines of a StableHLO text that multiply float32 arrays."""
    lines = PRODUCT.findall(text)
    types = [OPERANDS.findall(line.rsplit(" : ", 1)[1]) for line in lines]
    return [line for line, t in zip(lines, types, strict=True) if "f32" in t[:2]]


def inexact(lines):
    return [line for line in lines if line.count("HIGHEST") != 2]


def kernel_products(jaxpr):
    """Precision of the products of float32 arrays inside of Pallas kernels."""
    for call in equations(jaxpr):
        if call.primitive.name == "pallas_call":
            for eqn in equations(call.params["jaxpr"]):
                narrow = [v.aval.dtype != jnp.float32 for v in eqn.invars[:2]]
                if eqn.primitive.name == "dot_general" and not any(narrow):
                    yield eqn.params["precision"]


FAMILIES = [*ROWS, "wxformer_moe"]


def section_of(name, tmp_path):
    if name == "wxformer_moe":
        return MOE
    config = case_config(ROWS[name], 1, 1, model=name)
    return placed(config, tmp_path)["model"]


def lower(section, platform, precision=None):
    """The gradient of a forward pass by weights and inputs, outside of the model."""
    model = build_parallel_model(section, make_mesh(), mp_policy=precision)
    weights = jax.eval_shape(model.init, jax.random.key(0))
    fields = model.model_def.network_inputs.items()
    inputs = {
        name: jax.ShapeDtypeStruct(spec.shape(1), jnp.float32) for name, spec in fields
    }
    specs = {
        k: s.partition_spec(model.axes)
        for k, s in model.model_def.network_inputs.items()
    }
    noise = Noise(jax.random.key(1)) if model.model_def.draws_noise else None

    def body(params, model_state, given):
        return model.local_forward(params, model_state, *given)

    forward = model.shard_map(
        body,
        batch_specs=(specs, jax.sharding.PartitionSpec()),
        out_specs=model.model_def.output.partition_spec(model.axes),
    )

    def loss(params, model_state, inputs):
        return jnp.sum(jnp.square(forward(params, model_state, (inputs, noise))))

    name, chosen = PLATFORMS[platform]
    with use_platform(name), use_implementation(chosen):
        traced = jax.jit(jax.value_and_grad(loss, (0, 2))).trace(*weights, inputs)
        return traced, traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.slow(but=["wxformer-tpu"])
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore::credit_jax.config.base.ConfigWarning")
def test_products_of_float32_models_are_float32(name, platform, tmp_path):
    traced, text = lower(section_of(name, tmp_path), platform)
    products = float32_products(text)
    inside = set(kernel_products(traced.jaxpr.jaxpr))
    assert len(products) > 2 or name == "debugger"
    assert not inexact(products)
    assert inside <= {(Precision.HIGHEST,) * 2}


@pytest.mark.slow
@pytest.mark.parametrize("platform", list(PLATFORMS))
def test_products_of_a_training_step_are_float32(platform):
    name, chosen = PLATFORMS[platform]
    with use_implementation(chosen):
        _, traced = trace_step(SMALL_MODEL, "1", batch=1, platform=name)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert float32_products(text)
    assert not inexact(float32_products(text))


@pytest.mark.slow
def test_other_precisions_and_formats(tmp_path):
    def text(compute, matmul):
        policy = default_mp_policy(compute, matmul_precision=matmul)
        return lower(section_of("swin", tmp_path), "tpu", policy)[1]

    for matmul in ("high", "default"):
        products = float32_products(text("float32", matmul))
        stated = [line.count(matmul.upper()) == 2 for line in products]
        assert sum(stated) > len(stated) / 2, "spectral norm is float32 always"
    assert text("bfloat16", "highest") == text("bfloat16", "default")
