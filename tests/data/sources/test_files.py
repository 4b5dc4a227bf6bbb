"""Expansion of path templates to files."""

import numpy as np
import pytest

from credit_jax.data.sources.files import discover, time_format
from tests.data.damaged import VARIABLES, refused
from tests.data.world import raw_config, set_key


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.mark.parametrize(
    ("template", "codes"),
    [("a_%Y.nc", "%Y"), ("%Y/%m/x_*.nc", "%Y/%m"), ("x_%Y%m%d-%H.nc", "%Y%m%d-%H")],
)
def test_time_format(template, codes):
    assert time_format(template) == codes


@pytest.mark.parametrize(
    ("template", "names", "time", "found"),
    [
        (
            "run_1980_%Y_o.nc",
            ["run_1980_1999_o.nc", "run_1980_2000_o.nc"],
            "2000-06",
            1,
        ),
        ("%Y/%m/e_*.nc", ["2000/01/e_a.nc", "2000/02/e_a.nc"], "2000-02-29T18", 1),
        ("d_%Y%m%d.nc", ["d_20000101.nc", "d_20000102.nc"], "2000-01-01T23", 0),
        ("d_%Y%j.nc", ["d_2000059.nc", "d_2000060.nc"], "2000-02-29", 1),
        ("d_%Y-*", ["d_1999-a", "d_2000-b"], "1999-12-31T18", 0),
        ("d_%Y.nc", ["d_1999.nc", "d_2001.nc"], "2000-01-01", None),
        ("d_%Y-%m-%d", ["d_1999-12-30", "d_2000-01-04"], "2000-01-03T18", 0),
        ("d_%Y-%m-%d", ["d_1999-12-30", "d_2000-01-04"], "2000-01-08T18", 1),
        ("d_%Y-%m-%d", ["d_1999-12-30", "d_2000-01-04"], "2000-01-09", None),
        (
            "%Y/%m/e_%Y%m.nc",
            ["2000/01/e_200001.nc", "2000/02/e_200002.nc"],
            "2000-02",
            1,
        ),
        ("d_%Y.nc", ["d_1999.nc"], "2000-01-01", 0),
    ],
)
def test_finds_the_file_of_a_time(tmp_path, template, names, time, found):
    touch(tmp_path, *names)
    files = discover(f"{tmp_path}/{template}", "path")
    path = files.find(np.datetime64(time, "ns"))
    assert path == (None if found is None else f"{tmp_path}/{names[found]}")


def test_several_files_without_a_date(tmp_path):
    touch(tmp_path, "a1.nc", "a2.nc", "a2000.nc")
    with pytest.raises(ValueError, match=r"several files match .*write it as %Y, %m"):
        discover(f"{tmp_path}/a*.nc", "path")
    with pytest.raises(ValueError, match=r"a1\.nc has no date where the path .* %Y; "):
        discover(f"{tmp_path}/a%Y*.nc", "path")


def test_missing_file(folder):
    raw = raw_config(folder)
    set_key(raw, f"{VARIABLES}__static__path", f"{folder}/mask.nc")
    refused(
        folder,
        "data.source.ERA5.variables.static.path",
        "mask.nc",
        "holds: mean.nc, static.nc, std.nc, w_1999.nc",
        error=FileNotFoundError,
        raw=raw,
    )


def test_missing_folder(folder):
    raw = raw_config(folder)
    set_key(raw, f"{VARIABLES}__static__path", f"{folder}/deep/er/mask.nc")
    refused(folder, "does not exist", "holds:", error=FileNotFoundError, raw=raw)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("/nowhere/a/e_%Y.nc", "the folder '/nowhere/a' does not exist, nor does '/no"),
        (
            "/nowhere/e.nc",
            "x: no file matches '/nowhere/e.nc'; the folder '/nowhere' d",
        ),
        ("{tmp}/a/e.nc", "the folder '{tmp}/a' does not exist; '{tmp}' holds: f.nc"),
        ("{tmp}/e_%Y.nc", "(searched '{tmp}/e_*.nc'); '{tmp}' holds: f.nc"),
    ],
)
def test_what_is_said_of_a_missing_file(tmp_path, template, text):
    """The root of the file system is no help; a folder on the way is."""
    (tmp_path / "f.nc").touch()
    own = template.format(tmp=tmp_path)
    with pytest.raises(FileNotFoundError) as raised:
        discover(own, "x")
    assert text.format(tmp=tmp_path) in str(raised.value)
    assert "bin" not in str(raised.value)


def test_brackets_are_no_wildcards(tmp_path):
    folder = tmp_path / "[exp1]"
    folder.mkdir()
    for year in (1999, 2000):
        (folder / f"x_{year}.nc").touch()
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "x_2001.nc").touch()
    found = discover(f"{folder}/x_%Y.nc", "path")
    assert found.paths == (f"{folder}/x_1999.nc", f"{folder}/x_2000.nc")


def test_two_files_of_one_period_are_refused(tmp_path):
    touch(tmp_path, "m01_2000.nc", "m02_2000.nc", "m01_2001.nc")
    with pytest.raises(ValueError, match="of one period, from 2000-01-01") as caught:
        discover(str(tmp_path / "m*_%Y.nc"), "path")
    assert "m01_2000.nc and" in str(caught.value)
    assert "m02_2000.nc both match" in str(caught.value)
