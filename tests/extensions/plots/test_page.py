"""The page of scores: one file, whose tables equal the data set."""

import json
import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest

from credit_jax.extensions.plots.canvas import channel_text, lead_text, region_text
from credit_jax.extensions.plots.page import page_of, write_page
from tests.extensions.plots.synthetic import make_scores
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("page")
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
        if self.open[-1:] in (["script"], ["style"]):
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
    assert len(page.ids) == len(set(page.ids))
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


@CASES.case
def a_page(scores, page):
    """Curves of every channel; those of regions not shown first are templates."""
    shown = "".join(page.text)
    for key in ("T500", "num_start_dates", "forecast_", "train_loss", "_ratio"):
        assert key not in shown, f"called by its key: {key}"
    variables = {own["data-variable"] for _, own in page.tags if "data-variable" in own}
    assert variables == set(scores["variable"].values)
    titles = Counter(chart["title"] for chart in page.charts)
    return [
        *(f"section {own['id']}" for tag, own in page.tags if tag == "section"),
        *(f"menu {own['name']}" for tag, own in page.tags if tag == "select"),
        *(f"{t} {own['data-choice']}" for t, own in page.tags if "data-choice" in own),
        *(f"table {name}: {len(rows)} rows" for name, rows in page.tables.items()),
        *(f"{count} charts {title}" for title, count in titles.items()),
        *(line.strip() for line in shown.splitlines() if len(line.split()) > 3),
    ]


def test_the_table_of_scores_is_that_of_the_data_set(scores, page):
    (_, heads), *rows = page.tables["score-table"]
    names = [text for _, text in heads]
    keys = "channel units lead rmse persistence climatology wins mae bias acc activity"
    keys = [*keys.split(), "crps", "spread", "spread_skill_ratio", "region"]
    assert len(names) == len(keys)
    keys_of = {channel_text(scores, k): k for k in scores["channel"].values}
    seen = set()
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


@CASES.case
def ties():
    scores = make_scores(levels=(250.0, 500.0, 850.0), num_days=3)
    rmse, leads = scores["rmse"], scores["prediction_timedelta"]
    rmse.loc[{"system": "forecast"}] = 1.0
    rmse.loc[{"system": "persistence"}] = 2.0
    late = leads > np.timedelta64(24, "h")
    rmse.loc[{"system": "forecast", "prediction_timedelta": late}] = 3.0
    own = {"system": "forecast", "channel": "SP"}
    rmse.loc[own] = 1.0
    rmse.loc[own | {"prediction_timedelta": leads[-1]}] = 3.0
    return skill_of(scores)


def skill_of(scores):
    """The paragraphs on how long forecasts have skill."""
    text = page_of(scores, title="scores")
    section = text[text.index('<section id="skill"') :].partition("<table")[0]
    return re.findall(r"<li>(.*?)</li>", section, re.DOTALL)


def test_a_page_of_little(tmp_path, scores):
    few = scores[["rmse"]].sel(system=["forecast"]).isel(channel=[0])
    few.attrs = {}
    path = write_page(few, tmp_path / "new" / "scores.html")
    page = Page(path.read_text(encoding="utf-8"))
    sections = [given["id"] for tag, given in page.tags if tag == "section"]
    assert sections == ["skill", "scores", "curves"]
    seen = few.assign_attrs(training_dates="2 of 3 dates are in the training")
    assert "are in the training" in page_of(seen, title="a").partition("<section")[0]
    assert page.tables["skill-table"][1][1][1] == ["", "–"]


@CASES.case
def a_forecast_that_never_beats_a_baseline():
    scores = make_scores(levels=(500.0,), num_days=3)
    scores["rmse"].loc[{"system": "forecast"}] *= 1e3
    return skill_of(scores)
