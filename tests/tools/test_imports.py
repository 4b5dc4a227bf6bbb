"""Which files a test imports or names."""

from pathlib import Path

import pytest

from tools.imports import distances


@pytest.mark.parametrize(
    ("file", "test", "length"),
    [
        # Itself, its set-up, what it shares with others.
        ("tests/ops/test_conv.py", "tests/ops/test_conv.py", 0),
        ("tests/conftest.py", "tests/ops/test_conv.py", 0),
        ("tests/models/mesh_parity.py", "tests/models/test_meshes.py", 0),
        # An import, one by a shared module of the tests, two in a row.
        ("credit_jax/ops/conv.py", "tests/ops/test_conv.py", 1),
        ("credit_jax/models/registry.py", "tests/models/test_meshes.py", 1),
        ("credit_jax/models/swin/swin.py", "tests/models/test_meshes.py", 2),
        # Names that a package hands on at their first use.
        ("credit_jax/forecast/labeled.py", "tests/packages/test_labeled.py", 1),
        ("credit_jax/models/swin/fuxi.py", "tests/models/swin/test_files.py", 2),
        # A command and a config, by their names.
        ("credit_torch_bridge/cli.py", "tests/cli/test_console.py", 2),
        ("configs/tp2_domain2.yaml", "tests/cli/test_console.py", 1),
    ],
)
def test_length_of_the_way(file, test, length):
    assert distances(Path(file))[test] == length


def test_a_file_that_nothing_names_reaches_no_test():
    assert distances(Path("CITATION.cff")) == {}
