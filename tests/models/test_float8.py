"""Which matrices of a model are multiplied in float8, and the messages to users."""

from types import SimpleNamespace

import pytest

from credit_jax.models.model_def import float8_notes, multiplies_float8
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build
from credit_jax.parallel.params.precision import Float8, Precision, default_mp_policy
from tests.models.cases import BASE
from tests.support import make_mesh

WIDE = {**BASE, "depth": 1, "dim": [16, 32, 64, 128], "dim_head": 8}


def float8(min_channels: int) -> Precision:
    return default_mp_policy().with_float8(Float8(min_channels))


@pytest.mark.slow
def test_matrices_of_attention_and_feed_forward_only() -> None:
    """Not those of the position bias (64 / 4 = 16 channels), nor convolutions."""
    found = build(WIDE).float8_matrices(float8(64))
    assert found == [
        *((64, 64), (64, 192), (64, 256)),
        *((128, 128), (128, 384), (128, 512), (256, 64), (512, 128)),
    ]
    assert (16, 16) in build(WIDE).float8_matrices(float8(16))
    assert build(WIDE).float8_matrices(default_mp_policy()) == []


def test_ragged_matrices_stay_wide() -> None:
    assert Float8(16).takes(32, 48)
    assert not Float8(16).takes(32, 40), "hardware takes multiples of 16"
    assert not Float8(64).takes(32, 4096)


@pytest.mark.parametrize(
    ("platform", "capability", "expected"),
    [
        ("gpu", "9.0", True),
        ("gpu", "8.9", True),
        ("gpu", "10.0", True),
        ("gpu", "8.0", False),
        ("cpu", None, False),
        ("tpu", None, False),
    ],
)
def test_devices_that_multiply_float8(platform, capability, expected) -> None:
    device = SimpleNamespace(platform=platform, compute_capability=capability)
    assert multiplies_float8(device) is expected


@pytest.mark.slow
def test_one_warning_says_why_it_does_not_help() -> None:
    mesh = make_mesh()
    with pytest.warns(
        UserWarning, match="no dense layer of the model has 1024"
    ) as seen:
        model = build_parallel_model(WIDE, mesh, fp8=True)
    assert len(seen) == 1
    assert model.parallel_config.precision.float8 == Float8()
    with pytest.warns(UserWarning, match="cpu has no float8 products") as seen:
        build_parallel_model(WIDE, mesh, fp8=Float8(64))
    assert len(seen) == 1
    hopper = SimpleNamespace(platform="gpu", compute_capability="9.0")
    assert float8_notes(build(WIDE), float8(64), [hopper]) == []


def test_float16_is_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16 or float32, got float16"):
        build_parallel_model(
            WIDE, make_mesh(), mp_policy=default_mp_policy("float16"), fp8=True
        )
