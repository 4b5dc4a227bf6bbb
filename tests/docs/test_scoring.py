"""docs/scoring.md: its commands parse, its names exist, its block runs."""

import re
import shlex
from pathlib import Path

import pytest

from credit_jax.cli.commands import OK
from credit_jax.cli.console import all_commands, main
from credit_jax.evaluation.regions import REGIONS
from credit_jax.evaluation.scores import METRICS, write_scores
from tests.evaluation.test_scores import some_scores
from tests.support.code_blocks import code_blocks

TEXT = (Path(__file__).parents[2] / "docs/scoring.md").read_text()
COMMANDS = re.findall(r"^    credit-jax (.+)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command, monkeypatch):
    name, *arguments = shlex.split(command)
    given = []
    command = all_commands()[name].load()
    monkeypatch.setattr(command, "run", lambda self: given.append(self) or OK)
    assert main([name, *arguments]) == OK
    assert len(given) == 1


def test_names():
    assert len(COMMANDS) == 4
    for name in [*METRICS, *(region.name for region in REGIONS)]:
        assert f"`{name}`" in TEXT, name
    assert len(TEXT.splitlines()) < 100


def test_the_block_runs(tmp_path, monkeypatch, capsys):
    scores = some_scores()
    scores = scores.assign_coords(system=["forecast", "climatology"])
    write_scores(scores, tmp_path / "report")
    monkeypatch.chdir(tmp_path)
    (block,) = code_blocks(TEXT, "python")
    exec(block, {})
    assert "prediction_timedelta" in capsys.readouterr().out
