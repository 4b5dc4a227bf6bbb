"""The options that several commands have: values that no command can take."""

import pytest

from credit_jax.cli.commands import OK, USER_ERROR, ProcessOptions


class Waiting(ProcessOptions):
    """Does nothing."""

    def run(self):
        return OK


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("name", ["--connect-timeout", "--heartbeat-timeout"])
def test_seconds_that_are_none(name, seconds, capsys):
    assert Waiting.main([name, "2.5"]) == OK
    assert Waiting.main([f"{name}={seconds}"]) == USER_ERROR
    assert f"error: {name}: must be " in capsys.readouterr().err
