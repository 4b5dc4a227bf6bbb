"""The changes of `tests.data.fuzz`; `tests.forecast.test_campaign` reads some."""

from tests.data.fuzz import BOMBS, CHANGES, FILES, PLACES, data_set


def test_the_seeds_of_the_report_have_all_changes_of_all_places():
    sets = [data_set(seed) for seed in range(2000)]
    assert {own.place for own in sets} == {*PLACES}
    kinds = {kind for own in sets for kind in own.kinds}
    assert kinds == {*CHANGES, *FILES["nc"], *FILES["zarr"], *BOMBS}


def test_some_must_be_read_some_may_be_and_some_must_not():
    fates = [(own.may_fail, own.must_fail) for own in map(data_set, range(300))]
    assert {*fates} == {(False, False), (True, False), (True, True)}
    assert 0.3 < sum(must for _, must in fates) / len(fates) < 0.6
