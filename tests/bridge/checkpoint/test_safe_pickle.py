"""A pickle read as plain data."""

import pickle

import pytest

from credit_torch_bridge.checkpoint.safe_pickle import read_pickle
from credit_torch_bridge.checkpoint.torch_distributed import ALLOWED


def test_a_pickle_is_read_as_data():
    for protocol in (0, 2, 4, 5):
        value = {"a": [1, (2, None), {True}], "b": 1.5, "c": "text", "d": -(2**40)}
        if protocol < 4:
            value["a"].pop()
        data = pickle.dumps(value, protocol=protocol)
        assert read_pickle(data, ALLOWED) == value
    with pytest.raises(ValueError, match=r"asks for builtins\.eval"):
        read_pickle(b"cbuiltins\neval\n(S'1'\ntR.", ALLOWED)
    with pytest.raises(ValueError, match="broken pickle"):
        read_pickle(b"\x80\x04]", ALLOWED)
