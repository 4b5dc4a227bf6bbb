"""Years in names of files."""

from credit_torch_bridge.config.from_gen1_sources import template_of


def test_years_in_names(tmp_path):
    """The position of the year is found from the names of existing files."""
    for year in (1999, 2000):
        (tmp_path / f"y_TOTAL_{year}-01-01_{year}-12-31.zarr").mkdir()
    found, doubt = template_of(f"{tmp_path}/y_TOTAL*")
    assert (found, doubt) == (f"{tmp_path}/y_TOTAL_%Y*", "")
    for given, template in {
        "none/y_*.nc": "none/y_%Y*.nc",
        "y_????.nc": "y_%Y.nc",
        "y_????_*.nc": "y_%Y_*.nc",
        "one.nc": "one.nc",
    }.items():
        assert template_of(given)[0] == template
