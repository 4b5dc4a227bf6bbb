"""docs/api.md lists the public names; each has an example that runs, and lasts."""

import doctest
import inspect
import json
import re
import shutil
import sys

import pytest

import credit_jax
from tests.forecast.tiny_run import make_run
from tests.support.code_blocks import code_blocks
from tests.training.conftest import compiled_once, tiny_model, world
from tools.public_api import PAGE, RECORD, breaks, page, signatures

__all__ = ["compiled_once", "tiny_model", "world"]

# It trains, and scores what it has trained.
SLOW = {"train_model"}
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in sorted(credit_jax.__all__)
]


@pytest.fixture(scope="module")
def folder(world, tmp_path_factory):
    """The working directory of the examples, with a run and its data."""
    from credit_jax.models import registry
    from tests.training.tiny import Tiny, TinyConfig

    out = tmp_path_factory.mktemp("examples")
    patch = pytest.MonkeyPatch()
    patch.setitem(registry.MODELS, "tiny", registry.ModelEntry(TinyConfig, Tiny))
    config = make_run(world, out / "tiny")
    patch.undo()
    shutil.copytree(out / "tiny/run", out / "RUN")
    shutil.copyfile(config, out / "RUN/model.yml")
    shutil.copyfile(world / "w_2000.nc", out / "era5.nc")
    return out


@pytest.fixture(scope="module")
def prelude():
    """The names that the page defines before the examples."""
    (code,) = code_blocks(PAGE.read_text(), "python")
    names = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name, folder, prelude, tiny_model, monkeypatch):
    monkeypatch.chdir(folder)
    thing = getattr(credit_jax, name)
    names = {**vars(sys.modules[thing.__module__]), **prelude}
    test = doctest.DocTestParser().get_doctest(
        inspect.getdoc(thing), names, name, None, None
    )
    assert test.examples, f"credit_jax.{name} has no example"
    report = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test, out=report.append).failed == 0, "".join(report)


def test_the_page_lists_the_names():
    """All of them, and no others; `python -m tools.public_api` writes the table."""
    listed = re.findall(r"(?m)^\| \[`credit_jax\.(\w+)`\] \|", PAGE.read_text())
    assert sorted(listed) == sorted(credit_jax.__all__)
    files = re.findall(r"(?m)^\[`credit_jax\.\w+`\]: (\S+)$", PAGE.read_text())
    assert len(files) == len(listed)
    assert all((PAGE.parent / file).is_file() for file in files)
    assert len(page(PAGE.read_text()).splitlines()) == len(
        PAGE.read_text().splitlines()
    )


def test_calls_of_the_last_release_still_work():
    """A change that breaks them comes with a new version, and a new record."""
    record = json.loads(RECORD.read_text())
    assert breaks(record["names"], signatures()) == [], record["version"]


def test_what_breaks_calls_is_noticed():
    now = {"f": ["x", "y=", "**options"], "C.m": []}
    assert breaks(now, {**now, "g": []}) == []
    assert breaks(now, {"f": ["x"]}) == [
        "C.m is gone",
        "f: the parameter y is gone",
        "f: the parameter **options is gone",
    ]
    assert breaks(now, {**now, "f": ["x", "y", "**options"]}) == [
        "f: the parameter y has no default any more"
    ]
    new = {**now, "f": ["x", "z", "y=", "**options"]}
    assert breaks(now, new) == ["f: the parameter z is new and has no default"]
