"""Years in names of files and in ranges of dates."""

from credit_torch_bridge.config.times import pattern_of, template_of, years_of


def test_years_in_names(tmp_path):
    """The position of the year is found from the names of existing files."""
    for year in (1999, 2000):
        (tmp_path / f"y_TOTAL_{year}-01-01_{year}-12-31.zarr").mkdir()
    found, doubt = template_of(f"{tmp_path}/y_TOTAL*")
    assert (found, doubt) == (f"{tmp_path}/y_TOTAL_%Y*", "")
    assert template_of("none/y_*.nc")[0] == "none/y_%Y*.nc"
    for given in ("y_*.nc", "y_????.nc", "y_????_*.nc", "one.nc"):
        assert pattern_of(template_of(given)[0]) == given
    assert pattern_of("a_%Y%m.nc") is None


def test_whole_years():
    assert years_of([["1999-01-01", "2000-12-31 18:00"]]) == [1999, 2001]
    assert (
        years_of([["1999-01-01", "1999-12-31"], ["2001-01-01", "2001-12-31"]]) is None
    )
    assert years_of([["1999-01-02", "1999-12-31"]]) is None
