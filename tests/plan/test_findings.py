"""Problems are collected, and what a failed block assigns is as before it."""

import pytest

from credit_jax.config import ConfigError
from credit_jax.plan.findings import Findings


def test_the_errors_of_users_become_problems():
    findings, rows = Findings(), None
    with findings.collecting():
        rows = int("8")
    with findings.collecting("loss"):
        raise ConfigError(["a: wrong", "b: wrong"])
    with findings.collecting():
        raise FileNotFoundError("static.nc does not exist")
    assert rows == 8
    assert findings.problems == [
        "loss: a: wrong",
        "loss: b: wrong",
        "static.nc does not exist",
    ]


def test_other_errors_are_raised():
    findings = Findings()
    with pytest.raises(TypeError, match="no problem"), findings.collecting():
        raise TypeError("no problem of the user")
    assert findings.problems == []
