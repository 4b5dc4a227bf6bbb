"""The commands of docs/plotting.md and docs/forecasting.md."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from credit_jax.cli.console import all_commands
from credit_jax.visualization.page import PAGE_NAME

DOCS = Path(__file__).parents[2] / "docs"
FOUND = [
    shlex.split(line.strip())[1:]
    for name in ("plotting.md", "forecasting.md")
    for line in (DOCS / name).read_text().replace("\\\n", " ").splitlines()
    if re.match(r"    credit-jax (plot|score|forecast) ", line)
]


@pytest.mark.parametrize("words", FOUND, ids=" ".join)
def test_every_command_of_the_pages_parses(words):
    parser = argparse.ArgumentParser()
    all_commands()[words[0]].load().fill(parser)
    args = vars(parser.parse_args(words[1:]))
    assert {"out", "score", "members"} & args.keys()


def test_the_pages_have_commands_and_the_picture():
    assert {words[0] for words in FOUND} == {"plot", "score", "forecast"}
    assert len(FOUND) > 8
    text = (DOCS / "plotting.md").read_text()
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (DOCS / picture).stat().st_size < 300_000
    assert PAGE_NAME in text
