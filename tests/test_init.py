"""The names that `credit_jax` re-exports, their page, examples and calls."""

import ast
import doctest
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from pkgutil import iter_modules

import pytest

import credit_jax
import credit_torch_bridge
from tests.forecast.tiny_run import make_run
from tests.support.code_blocks import code_blocks
from tests.training.conftest import compiled_once, tiny_model, world
from tools.public_api import PAGE, RECORD, breaks, page, signatures

__all__ = ["compiled_once", "tiny_model", "world"]

HEAVY = ("jax", "torch", "numpy", "pydantic", "flax", "grain", "xarray")
# A submit script, the watch of a process and the launcher run no array code.
LIGHT = [f"parallel.processes.{name}" for name in ("launch", "watch", "coordinator")]


def output_of(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_import_alone_and_modules_of_processes_import_nothing_heavy():
    modules = ", ".join(["credit_jax", *(f"credit_jax.{name}" for name in LIGHT)])
    code = f"import sys, {modules}; print([m for m in {HEAVY} if m in sys.modules])"
    assert output_of(code) == "[]\n"


@pytest.mark.slow
def test_every_name_resolves_without_torch():
    types = json.loads(
        output_of(
            "import json, sys, credit_jax\n"
            "names = credit_jax.__all__\n"
            "types = {n: type(getattr(credit_jax, n)).__name__ for n in names}\n"
            "print(json.dumps(types | {'torch': 'torch' in sys.modules}))"
        )
    )
    assert types.pop("torch") is False
    assert sorted(types) == sorted(credit_jax.__all__) == sorted(dir(credit_jax))
    assert "module" not in types.values(), "each name is a function or a class"
    assert {"load_config", "build_parallel_model", "train_model"} <= set(types)


def test_no_name_is_that_of_a_module():
    """`import credit_jax.train` would otherwise replace a function `train`."""
    roots = [
        Path(package.__file__).parent for package in (credit_jax, credit_torch_bridge)
    ]
    folders = [file.parent for root in roots for file in root.rglob("__init__.py")]
    modules = {folder: {m.name for m in iter_modules([folder])} for folder in folders}
    assert "train" in modules[roots[0]]
    both = {folder: modules[folder] & names_of(folder) for folder in folders}
    assert {folder: names for folder, names in both.items() if names} == {}


def names_of(folder: Path) -> set[str]:
    """The names that a package binds, from its stub if it has one."""
    stub = folder / "__init__.pyi"
    file = stub if stub.exists() else folder / "__init__.py"
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


@pytest.fixture(scope="module")
def folder(world, tmp_path_factory):
    """The working directory of examples, with a run and its data."""
    from credit_jax.models import registry
    from tests.training.tiny import Tiny, TinyConfig

    out = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.MODELS, "tiny", registry.ModelEntry(TinyConfig, Tiny))
        config = make_run(world, out / "tiny")
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


# It trains, and scores what it has trained.
@pytest.mark.slow(but=sorted({*credit_jax.__all__} - {"train_model"}))
@pytest.mark.parametrize("name", sorted(credit_jax.__all__))
def test_the_example_runs(name, folder, prelude, tiny_model, monkeypatch):
    monkeypatch.chdir(folder)
    thing = getattr(credit_jax, name)
    names, text = vars(sys.modules[thing.__module__]) | prelude, inspect.getdoc(thing)
    test = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert test.examples, f"credit_jax.{name} has no example"
    report = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test, out=report.append).failed == 0, "".join(report)


def test_the_page_lists_the_names():
    """All of them, and no others; `python -m tools.public_api` writes the table."""
    text = PAGE.read_text()
    listed = re.findall(r"(?m)^\| \[`credit_jax\.(\w+)`\] \|", text)
    assert sorted(listed) == sorted(credit_jax.__all__)
    files = re.findall(r"(?m)^\[`credit_jax\.\w+`\]: (\S+)$", text)
    assert len(files) == len(listed)
    assert all((PAGE.parent / file).is_file() for file in files)
    assert len(page(text).splitlines()) == len(text.splitlines())


def test_calls_of_the_last_release_still_work():
    """A change that breaks them comes with a new version, and a new record."""
    record = json.loads(RECORD.read_text())
    assert breaks(record["names"], signatures()) == [], record["version"]
    now = {"f": ["x", "y=", "**options"], "C.m": []}
    assert breaks(now, {**now, "g": []}) == []
    gone = ["f: the parameter y is gone", "f: the parameter **options is gone"]
    assert breaks(now, {"f": ["x"]}) == ["C.m is gone", *gone]
    required, new = ["x", "y", "**options"], ["x", "z", "y=", "**options"]
    for parameters, problem in (
        (required, "f: the parameter y has no default any more"),
        (new, "f: the parameter z is new and has no default"),
    ):
        assert breaks(now, {**now, "f": parameters}) == [problem]
