"""The cases of the speed benchmark."""

from __future__ import annotations

import pytest

from benchmarks.small_models import SECTIONS, SEVERAL
from benchmarks.speed.cases import make_case


@pytest.mark.filterwarnings("ignore:.*output_only_channels")
@pytest.mark.parametrize("size", ["tiny", "demo"])
@pytest.mark.parametrize("model", SECTIONS)
def test_every_model_of_one_field_has_a_case(model: str, size: str) -> None:
    case = make_case(size, model)
    assert case.model_def.config.type == model
    assert case.is_of_one_field
    assert case.x.shape[1:3] == (7, case.model_def.frames)
    assert case.y.shape[1] in (5, 6)


@pytest.mark.filterwarnings("ignore:.*output_only_channels")
@pytest.mark.parametrize("size", ["tiny", "demo"])
@pytest.mark.parametrize("model", SEVERAL)
def test_networks_of_several_inputs_have_a_case(model: str, size: str) -> None:
    """Inputs of a diffusion network include the noised target and the noise step."""
    case = make_case(size, model)
    assert case.model_def.config.type == model
    assert case.inputs.keys() == case.model_def.inputs.keys() > {"x"}
    assert not case.is_of_one_field
    if "diffusion" in model:
        assert case.inputs.keys() == {"x", "noised", "time"}
        assert case.model_def.process is None
        assert set(case.inputs["time"].ravel()) <= set(range(50))


def test_what_has_no_case_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--size 1deg .* with --model fuxi use demo"):
        make_case("1deg", "fuxi")
