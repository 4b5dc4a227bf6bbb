"""Errors that say where they come from."""

import pytest

from credit_jax.io.errors import errors_of


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("3 levels"), ValueError),
        (UnicodeError("3 levels"), ValueError),
        (FileNotFoundError("3 levels"), FileNotFoundError),
        (PermissionError("3 levels"), OSError),
    ],
)
def test_the_place_stands_before_the_message(error, kind):
    with pytest.raises(kind, match=r"^a\.nc: 3 levels$") as raised, errors_of("a.nc"):
        raise error
    assert type(raised.value) is kind
    located = errors_of("a.nc", "T", "U", "T")
    with pytest.raises(kind, match=r"^a\.nc: T, U: 3 levels$"), located:
        raise error


def test_other_errors_pass():
    with pytest.raises(KeyError, match="T"), errors_of("a.nc"):
        raise KeyError("T")
