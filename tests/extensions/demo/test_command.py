"""The command `python -m credit_jax.demo`."""

import re

import pytest

from credit_jax.extensions.demo.command import main


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--truncation", "T7"], "truncation"),
        (["--days", "1"], "days"),
        (["--days", "9", "--held-out-days", "9"], "leave no day for training"),
    ],
)
def test_command_line_errors(tmp_path, capsys, arguments, text):
    assert main(["--out", str(tmp_path / "x"), *arguments]) == 2
    assert text in re.sub(r"\s+", " ", capsys.readouterr().err)
    assert not (tmp_path / "x").exists()
