"""The page of scores: one file, whose tables equal the data set."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from credit_jax.extensions.plots.canvas import channel_text, lead_text, region_text
from credit_jax.extensions.plots.page import page_of, write_page
from credit_jax.extensions.plots.score_charts import NAMES
from tests.extensions.plots.synthetic import make_scores

VOID = {"meta", "img", "br"}
PNG = b"\x89PNG of no picture"


class Page(HTMLParser):
    """Parses the elements and tables of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.references, self.open, self.text = [], [], [], []
        self.tables, self.rows, self.cell = {}, None, None
        self.tags, self.charts = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append((tag, given))
        self.ids += [value for name, value in attrs if name == "id"]
        self.references += [
            value for name, value in attrs if name in ("src", "href", "xlink:href")
        ]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows = self.tables[given.get("id", given["aria-label"])] = []
        elif tag == "tr" and self.rows is not None:
            self.rows.append((given, []))
        elif tag in ("td", "th") and self.rows is not None:
            self.rows[-1][1].append([given.get("data-value"), ""])
            self.cell = self.rows[-1][1][-1]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        assert self.open.pop() == tag
        if tag == "table":
            self.rows = None
        elif tag in ("td", "th"):
            self.cell = None

    def handle_data(self, data):
        is_script = bool(self.open) and self.open[-1] == "script"
        if is_script and "type" in self.tags[-1][1]:
            self.charts.append(json.loads(data))
            return
        self.text.append(data)
        if self.cell is not None:
            self.cell[1] += data


@pytest.fixture(scope="module")
def scores():
    return make_scores(levels=(500.0,), num_days=5, members=3).isel(region=[0, 1])


@pytest.fixture(scope="module")
def text(scores):
    return page_of(scores, title="Scores of <one> model", maps=[("T at 5 d", PNG)])


@pytest.fixture(scope="module")
def page(text):
    page = Page(text)
    assert page.open == []
    return page


def test_the_page_needs_no_other_file(text, page):
    for reference in page.references:
        assert reference.startswith(("#", "data:image/png;base64,")), reference
    links = [own[1:] for own in page.references if own.startswith("#")]
    assert set(links) <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)
    assert "http" not in text
    assert "@import" not in text
    assert not {"link", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert all("src" not in given for tag, given in page.tags if tag == "script")


HOSTILE = r"""'><script>alert(1)</script><img src=x onerror="alert(2)">$\nosuch$"""


@pytest.mark.slow
def test_texts_of_files_are_no_html():
    """Names, units, descriptions and attributes come from the files of others."""
    scores = make_scores(levels=(500.0,), num_days=1, members=3)
    known = Page(page_of(scores, title="a", maps=[("b", PNG)]))
    texts = {
        name: (scores[name].dims, [f"{own}{HOSTILE}" for own in scores[name].values])
        for name in ("variable", "units", "long_name", "level_units")
    }
    channels = [f"{own}{HOSTILE}" for own in scores["channel"].values]
    hostile = scores.assign_coords(texts).assign_coords(channel=channels)
    for name in ("region", "band"):
        hostile = hostile.assign_coords(
            {name: [f"{own}{HOSTILE}" for own in scores[name].values]}
        )
    hostile.attrs |= dict.fromkeys(
        (*(key for key in hostile.attrs if not key.startswith("num_")), HOSTILE),
        HOSTILE,
    )
    found = Page(page_of(hostile, title=HOSTILE, maps=[(HOSTILE, PNG)]))
    assert found.open == []
    for page in (known, found):
        assert not any(
            name.startswith("on") for _, given in page.tags for name in given
        )
    assert "<script>alert" in "".join(found.text), "it is shown as text"
    for tag in ("script", "img"):
        counts = [[own for own, _ in page.tags].count(tag) for page in (known, found)]
        assert counts[0] == counts[1], tag


@pytest.mark.slow
def test_training_dates_are_said_to_be_so(scores):
    for dates, shown in (("2 of 3 dates are in the training", True), ("none", False)):
        changed = scores.assign_attrs(training_dates=dates)
        text = page_of(changed, title="a").partition("<section")[0]
        assert ("are in the training" in text) == shown


def test_ids_are_unique(page):
    assert len(page.ids) == len(set(page.ids))


def test_the_sections(page):
    sections = [given["id"] for tag, given in page.tags if tag == "section"]
    assert sections == [
        "skill",
        "scores",
        "curves",
        "score-cards",
        "spectra",
        "rank-histograms",
        "maps",
        "provenance",
    ]
    shown = "".join(page.text)
    assert "Scores of <one> model" in shown
    assert "truth <of> 2001 & more" in shown
    channels, regions, bands = 4, 2, 2
    assert len(page.charts) == (3 * regions + bands + 1) * channels
    assert all(chart["title"] for chart in page.charts)
    cards = [rows for name, rows in page.tables.items() if name.startswith("RMSE of")]
    assert [len(rows) for rows in cards] == [1 + channels] * 2


def test_curves_of_every_channel_in_every_region(scores, page):
    """Those of the regions that are not shown first are templates."""
    labels = [chart["title"] for chart in page.charts]
    names = {own: channel_text(scores, own) for own in scores["channel"].values}
    assert names["T500"] == "T at 500 hPa"
    for metric in ("rmse", "acc", "crps"):
        for channel, name in names.items():
            units = (
                ""
                if metric == "acc"
                else f" ({scores.units.sel(channel=channel).item()})"
            )
            assert labels.count(f"{NAMES[metric]} of {name}{units}") == 2
    chosen = [
        (tag, given["data-choice"])
        for tag, given in page.tags
        if "data-choice" in given
    ]
    assert chosen == [
        ("div", "global"),
        ("template", "tropics"),
        ("div", "global"),
        ("template", "tropics"),
    ]


def test_charts_can_be_filtered_by_variable(scores, page):
    menus = [given for tag, given in page.tags if tag == "select"]
    names = [given["name"] for given in menus]
    assert names == ["region", "lead", *["choice", "variable"] * 2]
    variables = {
        given["data-variable"] for _, given in page.tags if "data-variable" in given
    }
    assert variables == set(scores["variable"].values)


def test_nothing_is_called_by_its_key(page):
    shown = "".join(page.text)
    for key in ("T500", "num_start_dates", "forecast_", "train_loss", "_ratio"):
        assert key not in shown, key
    assert "start dates" in shown
    assert "forecast with credit_jax" in shown


def test_the_table_of_scores_is_that_of_the_data_set(scores, page):
    (_, heads), *rows = page.tables["score-table"]
    names = [text for _, text in heads]
    keys = ["channel", "units", "lead", "rmse", "persistence", "climatology", "wins"]
    keys += ["mae", "bias", "acc", "activity", "crps", "spread"]
    keys += ["spread_skill_ratio", "region"]
    assert len(names) == len(keys)
    seen, keys_of = (
        set(),
        {channel_text(scores, k): k for k in scores["channel"].values},
    )
    for data, cells in rows:
        found = dict(zip(keys, cells, strict=True))
        lead = np.timedelta64(round(24 * float(found["lead"][0])), "h")
        place = {
            "channel": keys_of[found["channel"][1]],
            "region": data["data-region"],
            "prediction_timedelta": lead,
        }
        assert found["lead"][1] == data["data-lead"] == lead_text(lead)
        assert found["region"][1] == region_text(data["data-region"])
        seen.add(tuple(place.values()))
        own = scores.sel(place)
        assert found["units"][1] == own["units"].item()
        for name in ("rmse", "mae", "bias", "acc", "activity", "crps", "spread"):
            value = own[name].sel(system="forecast").item()
            assert float(found[name][0]) == value, (name, place)
            assert float(found[name][1]) == pytest.approx(value, rel=6e-3)
        errors = [own["rmse"].sel(system="forecast").item()]
        for name in ("persistence", "climatology"):
            errors.append(own["rmse"].sel(system=name).item())
            assert float(found[name][0]) == errors[-1]
        wins = errors[0] < min(errors[1:])
        assert found["wins"][1] == ("yes" if wins else "no")
    days = [np.timedelta64(24 * day, "h") for day in (1, 3, 5)]
    channels, regions = scores["channel"].values, scores["region"].values
    assert seen == {(c, r, d) for c in channels for r in regions for d in days}
    assert len(rows) == len(seen)


def test_the_page_says_until_when_there_is_skill(scores, page):
    (_, heads), *rows = page.tables["skill-table"]
    assert [own[1] for own in heads][:3] == [
        "channel",
        "beats persistence until",
        "beats climatology until",
    ]
    channels = scores["channel"].values
    assert [cells[0][1] for _, cells in rows] == [
        channel_text(scores, k) for k in channels
    ]
    for channel, (_, cells) in zip(channels, rows, strict=True):
        own = scores["rmse"].sel(channel=channel, region="global")
        for (_, found), name in zip(
            cells[1:3], ("persistence", "climatology"), strict=True
        ):
            better = own.sel(system="forecast") < own.sel(system=name)
            leads = own["prediction_timedelta"].values
            if better.all():
                assert found == f"≥ {lead_text(leads[-1])}"
            else:
                last = leads[int(np.argmin(better.values)) - 1]
                assert found == lead_text(last)
    shown = "".join(page.text)
    assert "below that of persistence at every lead time, to 5 d, for all 4" in shown
    assert (
        "This ends first for t2m and SP, after 4 d, and last for U at 500 hPa, after "
        in shown
    )
    assert "it holds to the end for 1 of 4." in shown


def test_ties_are_said_to_be_ties():
    scores = make_scores(levels=(250.0, 500.0, 850.0), num_days=3)
    rmse = scores["rmse"]
    rmse.loc[{"system": "forecast"}] = 1.0
    rmse.loc[{"system": "persistence"}] = 2.0
    late = scores["prediction_timedelta"] > np.timedelta64(24, "h")
    rmse.loc[{"system": "forecast", "prediction_timedelta": late}] = 3.0
    rmse.loc[{"system": "forecast", "channel": "SP"}] = 1.0
    last = scores["prediction_timedelta"][-1]
    at_the_end = {"system": "forecast", "channel": "SP", "prediction_timedelta": last}
    rmse.loc[at_the_end] = 3.0
    shown = "".join(Page(page_of(scores, title="ties")).text)
    assert (
        "This ends first for 7 channels (T at 250 hPa, T at 500 hPa, T at 850 hPa, "
        "U at 250 hPa, U at 500 hPa, U at 850 hPa and 1 more), after 1 d, and last for "
        "SP, after 2 d 12 h." in shown
    )


def test_a_page_of_little(tmp_path, scores):
    few = scores[["rmse"]].sel(system=["forecast"]).isel(channel=[0])
    few.attrs = {}
    path = write_page(few, tmp_path / "new" / "scores.html")
    page = Page(path.read_text(encoding="utf-8"))
    sections = [given["id"] for tag, given in page.tags if tag == "section"]
    assert sections == ["skill", "scores", "curves"]
    assert page.tables["skill-table"][1][1][1] == ["", "–"]
    assert len(page.ids) == len(set(page.ids))


def test_a_forecast_that_never_beats_a_baseline():
    scores = make_scores(levels=(500.0,), num_days=3)
    scores["rmse"].loc[{"system": "forecast"}] *= 1e3
    page = page_of(scores, title="scores")
    for baseline in ("persistence", "climatology"):
        text = f"below that of {baseline} at the first lead time, 12 h, for no channel."
        assert text in page
