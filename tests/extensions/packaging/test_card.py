"""The model card of a package."""

from importlib.resources import files
from string import Formatter

import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.extensions.packaging.write import data_lines, write_card

CARD = files("credit_jax.extensions.packaging").joinpath("card.md").read_text()
NAMES = {name for _, name, _, _ in Formatter().parse(CARD) if name}
NAMES -= {"spdx", "tag", "data", "scores", "parameters"}


def card(folder, text, data, *, dates=None, leads=(1,), **row):
    """The card with a text as every name, and a score."""
    row |= {"metric": "rmse", "system": "forecast", "region": "global"}
    row = {"units": text} | row
    rows = [row | {"lead_hours": 6.0 * n, "value": 1.25 * n} for n in leads]
    pd.DataFrame(rows).to_csv(folder / "scores.csv", index=False)
    if dates is not None:
        scores = xr.Dataset(attrs={"training_dates": dates})
        scores.to_netcdf(folder / "scores.nc", engine="h5netcdf")
    facts = dict.fromkeys(NAMES, text) | {"parameters": 1}
    write_card(folder / "card.md", facts, data, folder / "scores.csv")
    return (folder / "card.md").read_text()


@pytest.mark.parametrize(
    ("dates", "text"),
    [
        ("2 of 3 dates are in the training period", "2 of 3 dates are in the training"),
        ("none", "No date is in the training period."),
        (None, "Whether their dates are held out is not recorded."),
    ],
)
def test_scores_of_training_dates_are_said_to_be_so(dates, text, tmp_path):
    channel = {"channel": "T500", "variable": "T", "level": 500.0, "units": "K"}
    channel["level_units"] = "hPa"
    written = card(tmp_path, "x", "", dates=dates, leads=(1, 4), **channel)
    assert text in written
    assert "| RMSE, global | 6 h | 24 h |" in written
    assert "| T at 500 hPa (K) | 1.25 | 5 |" in written


def test_texts_of_others_are_texts_in_the_card(tmp_path):
    """Names, licenses and units are no cells, links, HTML or keys of Markdown."""
    evil = "x|<img src=y>\n# [a](b)\x1b[2J"
    data = data_lines([f"source.{evil}.path"])
    text = card(tmp_path, evil, data, channel=evil)
    head, _, body = text.removeprefix("---\n").partition("---\n")
    assert yaml.safe_load(head)["license"] == evil
    assert yaml.safe_load(head)["tags"] == ["weather", evil]
    assert "\x1b" not in text
    plain = body.replace(data, "")
    assert "<img" not in plain.replace("\\<img", "")
    assert "[a]" not in plain.replace("\\[a\\]", "")
    assert body.count("\n# ") == 1, "the title"
    cells = [line.replace("\\|", "") for line in body.splitlines() if line[:1] == "|"]
    assert {line.count("|") for line in cells} == {3}
    assert yaml.safe_load(data) == {"source": {evil: {"path": "..."}}}
