"""docs/data.md: the source of a user's own that it shows is read and checked."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from credit_jax.config import ConfigError, load_config
from credit_jax.plan import plan_run
from tests.config.example import example
from tests.data.world import MODEL, TIMES
from tests.support.code_blocks import code_blocks
from tests.support.custom_objects import no_objects_left

__all__ = ["no_objects_left"]

PAGE = Path(__file__).parents[2] / "docs/data.md"
TIME_RANGE = slice(0, 8)


@pytest.fixture
def page(tmp_path, monkeypatch, no_objects_left):
    """Writes the files of the page and its arrays; returns the sections of its YAML."""
    monkeypatch.chdir(tmp_path)
    (code,) = (text for text in blocks("python") if "SourceEntry" in text)
    (text,) = (text for text in blocks("yaml") if "my_source" in text)
    Path("my_source.py").write_text(code)
    Path("arrays").mkdir()
    for number, time in enumerate(TIMES[TIME_RANGE]):
        for offset, name in enumerate("TU"):
            array = np.arange(60.0).reshape(6, 10) + 100 * number + 0.5 * offset
            np.save(f"arrays/{name}_{time:%Y%m%d%H}.npy", array)
    return yaml.safe_load(text)


def blocks(language):
    """The code of every block of the page in a language."""
    return code_blocks(PAGE.read_text(), language)


def planned(sections, **changes):
    """The plan of a config with the source of the page."""
    first, last = (str(TIMES[TIME_RANGE][place]) for place in (0, -1))
    counts = {"channels": 0, "surface_channels": 2, "input_only_channels": 0}
    mapping = example(
        custom_objects=sections["custom_objects"],
        data__source=sections["data"]["source"],
        data__start_datetime=first,
        data__end_datetime=last,
        model={**MODEL, **counts, "type": "debugger", "output_only_channels": 0},
        preblocks={"per_step": {"concat": {"type": "concat"}}},
        trainer__skip_validation=True,
        **changes,
    )
    Path("my.yml").write_text(yaml.safe_dump(mapping))
    return plan_run(load_config("my.yml"), num_devices=1)


def test_its_source_is_read(page):
    plan = planned(page)
    batch = next(plan.loaders["train"].epoch(0))
    values = batch.x[:, :, 0, 0, 0]
    assert values.shape == (2, 2)
    # The number of the time, and that of the variable.
    numbers = values[:, 0] / 100
    np.testing.assert_array_equal(numbers, numbers.astype(int))
    np.testing.assert_array_equal(values[:, 1] - values[:, 0], 0.5)
    np.testing.assert_array_equal(batch.y[:, :, 0] - batch.x[:, :, 0], 100.0)


def test_a_file_that_is_missing_is_a_problem(page):
    path = f"arrays/U_{TIMES[3]:%Y%m%d%H}.npy"
    Path(path).unlink()
    with pytest.raises(ConfigError, match=f"no file {path}"):
        planned(page)
