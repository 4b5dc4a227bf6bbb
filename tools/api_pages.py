"""A hook of mkdocs that adds pages from outside of docs/.

- README.md is the first page; CHANGELOG.md, CONTRIBUTING.md and the pages below
  benchmarks/ are pages, too, so that links between them work here as in the repository.
- reference/PACKAGE.md: the docstrings of all modules of a package.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import credit_jax

ROOT = Path(__file__).parents[1]
PACKAGES = ("credit_jax", "credit_torch_bridge")
INDEX = "README.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the reports of the benchmarks and the reference to the navigation."""
    assert config.nav is not None
    reports = [
        p for p in _outside() if p.startswith("benchmarks/") and p.endswith("md")
    ]
    pages = [{package: _reference(package)} for package in _modules()]
    config.nav += [{"Benchmarks": reports}, {"Reference": pages}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages, in memory."""
    for path in _outside():
        uri = "index.md" if path == INDEX else path
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    for package, modules in _modules().items():
        lines = [f"# {package}", *(f"::: {module}" for module in modules)]
        text = "\n\n".join(lines) + "\n"
        files.append(File.generated(config, _reference(package), content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Converts links between files of the repository to links between pages.

    The public names are links to the reference here, and to files in the repository.
    """
    if page.file.src_uri == "api.md":
        markdown = re.sub(r"(?m)^\| \[(`credit_jax\.(\w+)`)\]", _linked, markdown)
    if page.file.generated_by is None:
        markdown = re.sub(r"\]\(\.\./", "](", markdown)
    markdown = re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)
    return re.sub(r"\]\(((?:\.\./)*)README\.md", r"](\1index.md", markdown)


def _linked(match: re.Match[str]) -> str:
    thing = getattr(credit_jax, match[2])
    page = _reference(thing.__module__.rpartition(".")[0])
    return f"| [{match[1]}]({page}#{thing.__module__}.{thing.__qualname__})"


def _outside() -> Iterator[str]:
    """Pages and pictures outside of docs/ and the packages."""
    yield from (INDEX, "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff")
    for path in sorted((ROOT / "benchmarks").rglob("*")):
        if path.suffix in (".md", ".png", ".json"):
            yield str(path.relative_to(ROOT))


def _modules() -> dict[str, list[str]]:
    """The modules of every package with any, the package itself first."""
    by_package: dict[str, list[str]] = {}
    for file in sorted(f for name in PACKAGES for f in (ROOT / name).rglob("*.py")):
        *folders, name = file.relative_to(ROOT).with_suffix("").parts
        package = ".".join(folders)
        modules = by_package.setdefault(package, [])
        if name == "__init__" and file.stat().st_size:
            modules.insert(0, package)
        elif name != "__init__":
            modules.append(f"{package}.{name}")
    return {package: modules for package, modules in by_package.items() if modules}


def _reference(package: str) -> str:
    return f"reference/{package}.md"
