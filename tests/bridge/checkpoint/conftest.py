"""Conversion of files that are refused."""

import pytest

from tests.reference.training import GEN2_CONFIG


@pytest.fixture
def assert_refused(bridge, tmp_path):
    """Converts a file: one error, exit code 2, and nothing is written."""

    def fails(path, *words):
        config = tmp_path / "config.yml"
        config.write_text(GEN2_CONFIG.read_text())
        before = sorted(tmp_path.iterdir())
        given = "--config", config, "--checkpoint", path, "--out", tmp_path / "out"
        code, text = bridge("convert", "--to", "jax", *given)
        print(text)
        assert code == 2, text
        assert text.count("error: ") == 1, text
        for word in words:
            assert word in text
        assert sorted(tmp_path.iterdir()) == before, "something was left behind"

    return fails
