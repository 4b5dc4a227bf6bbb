"""The names that `credit_jax` re-exports."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from pkgutil import iter_modules

import pytest

import credit_jax
import credit_torch_bridge

PACKAGES = (credit_jax, credit_torch_bridge)
HEAVY = ("jax", "torch", "numpy", "pydantic", "flax", "grain", "xarray")


def run(code: str) -> str:
    """Returns the output of a program in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_import_alone_imports_nothing_heavy():
    code = f"import sys, credit_jax; print([m for m in {HEAVY} if m in sys.modules])"
    assert run(code) == "[]\n"


def test_modules_of_processes_import_nothing_heavy():
    """A submit script, the watch of a process and the launcher run no array code."""
    names = "launch", "watch", "coordinator"
    modules = ", ".join(f"credit_jax.parallel.processes.{name}" for name in names)
    code = f"import sys, {modules}; print([m for m in {HEAVY} if m in sys.modules])"
    assert run(code) == "[]\n"


@pytest.mark.slow
def test_every_name_resolves_without_torch():
    code = (
        "import json, sys, credit_jax\n"
        "names = credit_jax.__all__\n"
        "found = {n: type(getattr(credit_jax, n)).__name__ for n in names}\n"
        "found['torch'] = 'torch' in sys.modules\n"
        "print(json.dumps(found))"
    )
    found = json.loads(run(code))
    assert found.pop("torch") is False
    assert sorted(found) == sorted(credit_jax.__all__) == sorted(dir(credit_jax))
    assert "module" not in found.values(), "each name is a function or a class"
    assert {"load_config", "build_parallel_model", "train_model"} <= set(found)


def test_no_name_is_that_of_a_module():
    """`import credit_jax.train` would otherwise replace a function `train`."""
    roots = [Path(package.__file__).parent for package in PACKAGES]
    folders = [file.parent for root in roots for file in root.rglob("__init__.py")]
    modules = {folder: {m.name for m in iter_modules([folder])} for folder in folders}
    assert "train" in modules[roots[0]]
    both = {str(folder): modules[folder] & names_of(folder) for folder in folders}
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
