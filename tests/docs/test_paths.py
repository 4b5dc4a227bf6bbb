"""Every file, module and command that a page names exists."""

import importlib.util
import re
from pathlib import Path

import pytest

from credit_jax.cli.console import all_commands

ROOT = Path(__file__).parents[2]
TOPS = "credit_jax|credit_torch_bridge|tests|docs|benchmarks|configs|tools"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
COMMANDS = all_commands()
COMMANDS_PAGE = ROOT / "docs/commands.md"


def named(page: Path, pattern: str) -> list[str]:
    return sorted(set(re.findall(pattern, page.read_text())))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files(page):
    """Names of the form tests/test_<name>.py and credit_jax/a/b.py are placeholders."""
    paths = named(page, rf"(?<![\w/])((?:{TOPS})/[\w/.-]*\w\b/?)(?!<)")
    real = [path for path in paths if "/a/" not in path]
    missing = [path for path in real if not (ROOT / path).exists()]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules(page):
    modules = named(page, rf"python -m ((?:{TOPS})[\w.]*)")
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_subcommands(page):
    names = named(page, r"^    (?:\S*bin/)?credit-jax +(\w+)")
    missing = [name for name in names if name not in COMMANDS]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_text_fit_a_screen(page):
    """120 characters, rows of tables too; code and what is made have their own."""
    skipped = r"^```.*?^```$|^<!-- made by:.*?^<!-- the end of what is made -->$"
    text = re.sub(skipped, "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    assert [line for line in lines if len(line) > 120] == []


def test_every_command_has_a_row():
    rows = re.findall(r"^\| `([\w-]+)`", COMMANDS_PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(COMMANDS)
