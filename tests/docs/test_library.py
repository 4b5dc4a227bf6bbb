"""docs/library.md: its commands and its blocks run, in order."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from credit_jax.cli.console import main
from tests.models.cases import BASE, section

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "library.md"
MODEL = section(BASE, (32, 32), depth=[0, 1, 0, 0], padding_conf=None)


VARIABLES = {
    "prognostic": {"vars_3D": ["U", "T"], "vars_2D": ["SP"]},
    "static": {"vars_2D": ["LSM", "Z"]},
    "diagnostic": {"vars_2D": ["TP"]},
}
SOURCE = {"dataset_type": "local", "levels": [500, 850], "level_coord": "level"}
DATA = {"start_datetime": "2000-01-01", "end_datetime": "2001-01-01"}
DATA |= {"timestep": "6h", "forecast_len": 1}
for field in VARIABLES.values():
    field["path"] = "era5_%Y.nc"


def blocks(page: Path = PAGE) -> list[tuple[int, str]]:
    """Returns (first line number, code) of every block of Python."""
    text = page.read_text()
    found = re.finditer(r"```python\n(.*?)```", text, re.DOTALL)
    return [(text[: m.start(1)].count("\n"), m[1]) for m in found]


def commands() -> list[list[str]]:
    """Returns the arguments of every command, without the program."""
    found = re.findall(r"^    credit-jax (.+)$", PAGE.read_text(), re.MULTILINE)
    return [shlex.split(command) for command in found]


def write_checkpoint(folder: Path) -> None:
    """Writes a checkpoint of a CREDIT model as CREDIT does."""
    import torch

    from credit_torch_bridge.compare.credit_side import new_credit_model

    torch.manual_seed(0)
    data = DATA | {"source": {"ERA5": SOURCE | {"variables": VARIABLES}}}
    (folder / "model.yml").write_text(yaml.safe_dump({"model": MODEL, "data": data}))
    state = new_credit_model(MODEL).state_dict()
    torch.save({"model_state_dict": state}, folder / "checkpoint.pt")


def test_the_page_is_short():
    assert len(PAGE.read_text().splitlines()) < 120


@pytest.mark.slow
def test_the_page_runs(credit, tmp_path, monkeypatch):
    write_checkpoint(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert [main(command) for command in commands()] == [0]
    names: dict[str, object] = {}
    for line, code in blocks():
        exec(compile("\n" * line + code, str(PAGE), "exec"), names)
    assert names["names"] == ["U 500", "U 850", "T 500", "T 850", "SP", "TP"]
    assert {"forecast", "sensitivity", "curvature", "info", "small"} <= set(names)
