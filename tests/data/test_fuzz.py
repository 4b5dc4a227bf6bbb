"""Some data sets of `tests.data.fuzz`; `benchmarks.fuzz` tries all."""

import pytest

from tests.data.fuzz import FILES, OTHER, SAME, data_set, try_seeds

SEEDS = range(12)


@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
def test_values_are_those_of_numpy(tmp_path):
    results = [*try_seeds(tmp_path, SEEDS)]
    wrong = [own for own in results if own[2] not in ("read", "refused")]
    assert not wrong, "\n".join(map(str, wrong))
    assert {own[2] for own in results} == {"read", "refused"}


def test_the_seeds_of_the_report_have_all_changes():
    kinds = {kind for seed in range(300) for kind in data_set(seed).kinds}
    assert kinds == {*SAME, *OTHER, *FILES["nc"], *FILES["zarr"]}
