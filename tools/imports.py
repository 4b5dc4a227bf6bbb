"""The graph of imports of this repository: which tests are how far from a file.

An edge leads from a file to one that it imports (grimp), and to one that it names in
quotes: a module, which a command or a registry imports by its name. Tests and
benchmarks also lead to files that are no modules, such as configs, by their names.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
LIBRARIES = ("credit_jax", "credit_torch_bridge")
PACKAGES = (*LIBRARIES, "benchmarks", "tests", "tools")

_NAMES = "|".join(PACKAGES)
_MODULE = re.compile(rf"[\"']((?:{_NAMES})(?:\.\w+)*)[\"':]")
# f"{__package__}.{name}" may be whatever stands in the folder.
_ANY_MODULE = re.compile(rf"f\"(\{{__package__\}}|(?:{_NAMES})[.\w]*)\.\{{")
_HANDED_ON = re.compile(r"^from (\.[\w.]*) import", re.MULTILINE)
_FILE = re.compile(r"[\w-]+\.(?:ya?ml|json|md|sh|txt|toml)\b")


def distances(file: Path) -> dict[str, int]:
    """Returns the number of imports between a file and each test that reaches it.

    Imports within the tests do not count, nor what an `__init__` hands on: 0 is a test
    whose own code or set-up the file is, and 1 one that imports the file.

    Args:
        file: a path in the repository.
    """
    lengths = {str(file): 0}
    queue = deque(lengths)
    while queue:
        imported = queue.popleft()
        counts = not imported.startswith("tests/") and Path(imported).stem != "__init__"
        for importer in _importers().get(imported, ()):
            length = lengths[imported] + counts
            if importer not in lengths or length < lengths[importer]:
                lengths[importer] = length
                (queue.append if counts else queue.appendleft)(importer)
    return {path: length for path, length in lengths.items() if is_test(Path(path))}


def is_test(file: Path) -> bool:
    """Whether a path in the repository is that of a file of tests."""
    return file.parts[0] == "tests" and file.match("test_*.py")


@cache
def _importers() -> Mapping[str, set[str]]:
    importers = defaultdict(set)
    for importer, files in _imports():
        for file in files:
            importers[file].add(importer)
    return importers


def _imports() -> Iterable[tuple[str, set[str]]]:
    """Yields each Python file with the files that it imports or names."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    files = {module: _file_of(module) for module in graph.modules - {"tools"}}
    data = _data_files()
    for module, file in files.items():
        text = (ROOT / file).read_text()
        package = module if Path(file).stem == "__init__" else module.rpartition(".")[0]
        names = graph.find_modules_directly_imported_by(module)
        for name in _MODULE.findall(text):
            # A package's name alone is that of its command line.
            quoted = {name, f"{name}.__main__"} if "." in name else {f"{name}.__main__"}
            names |= quoted & files.keys()
        for folder in _ANY_MODULE.findall(text):
            name = folder.replace("{__package__}", package)
            # The group of entry points is named so, too.
            beside = graph.find_children(name) if name in graph.modules else ()
            names |= {name for name in beside if not is_test(Path(files[name]))}
        stub = (ROOT / file).with_suffix(".pyi")
        if stub.exists():
            handed_on = _HANDED_ON.findall(stub.read_text())
            names |= {package + name for name in handed_on} & files.keys()
        imported = {files[name] for name in names}
        if not file.startswith(LIBRARIES):
            imported |= set().union(*(data[name] for name in _FILE.findall(text)))
        if is_test(Path(file)):
            imported |= {str(folder / "conftest.py") for folder in Path(file).parents}
        yield file, imported - {file}


def _file_of(module: str) -> str:
    path = Path(*module.split("."))
    package = path / "__init__.py"
    return str(package if (ROOT / package).exists() else path.with_suffix(".py"))


def _data_files() -> dict[str, set[str]]:
    """Returns the paths of files that are no modules, by name."""
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    paths = defaultdict(set)
    for file in done.stdout.splitlines():
        if not file.endswith((".py", ".pyi")):
            paths[Path(file).name].add(file)
    return paths
