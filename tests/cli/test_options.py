"""The options that several commands have: values that no command can take."""

import argparse

import pytest

from credit_jax.cli.options import add_process_options


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("name", ["--connect-timeout", "--heartbeat-timeout"])
def test_seconds_that_are_none(name, seconds, capsys):
    parser = argparse.ArgumentParser()
    add_process_options(parser)
    assert parser.parse_args([name, "2.5"])
    with pytest.raises(SystemExit):
        parser.parse_args([f"{name}={seconds}"])
    error = capsys.readouterr().err
    assert f"argument {name}: must be seconds above zero, got '{seconds}'" in error
