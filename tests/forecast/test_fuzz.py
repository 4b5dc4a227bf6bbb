"""Some data sets of `tests.forecast.fuzz`; `benchmarks.fuzz` tries all."""

from pathlib import Path

import pytest

from tests.forecast.fuzz import try_seeds


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
@pytest.mark.usefixtures("tiny_model")
def test_values_are_those_of_numpy(tmp_path: Path) -> None:
    results = [*try_seeds(tmp_path, range(34, 40))]
    wrong = [own for own in results if own[2] not in ("read", "refused")]
    assert not wrong, "\n".join(map(str, wrong))
    assert {own[2] for own in results} == {"read", "refused"}
