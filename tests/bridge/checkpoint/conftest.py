"""A fixture that asserts that `convert` refuses a file."""

import pytest

from tests.reference.training import GEN2_CONFIG


@pytest.fixture
def assert_refused(bridge, tmp_path):
    """Asserts that converting a file gives one error, exit code 2 and no output."""

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
