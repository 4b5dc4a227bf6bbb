"""The table of scores on the console."""

import numpy as np
from rich.console import Console

from credit_jax.evaluation.score_table import score_table
from credit_jax.evaluation.scores import to_table
from tests.visualization.synthetic import make_scores


def printed(scores, *leads):
    console = Console(width=100)
    with console.capture() as text:
        console.print(score_table(scores, leads))
    return text.get().splitlines()


def test_numbers_have_units_and_say_over_how_many_levels_they_are():
    scores = make_scores(levels=(250.0, 500.0, 850.0), num_days=2)
    assert score_table(scores).title == (
        "RMSE, global, 12 start dates; root mean square over the levels"
    )
    lines = printed(scores, "24h", "48h")
    heads = [line[:13].strip() for line in lines]
    place = heads.index("T")
    assert heads[place + 1 : place + 3] == ["K", "3 levels"]
    place_of_sp = heads.index("SP")
    assert heads[place_of_sp + 1 : place_of_sp + 3] == ["Pa", ""], "one level"
    only = printed(scores.sel(system=["forecast"]), "24h")
    assert any(line.startswith("  T, K, 3 levels") for line in only)
    own = scores["rmse"].sel(system="forecast", region="global")
    own = own.sel(channel=["T250", "T500", "T850"]).isel(prediction_timedelta=[1, 3])
    mean = np.sqrt((own**2).mean("channel")).values
    assert lines[place].split()[-2:] == [f"{value:.3g}" for value in mean]


def test_without_levels_nothing_is_said_of_them():
    scores = make_scores(levels=(500.0,), num_days=1)
    assert score_table(scores).title == "RMSE, global, 12 start dates"


def test_dates_of_the_training_are_said_to_be_so():
    scores = make_scores(levels=(500.0,), num_days=1)
    for seen in ("none", "unknown"):
        title = score_table(scores.assign_attrs(training_dates=seen)).title
        assert title == "RMSE, global, 12 start dates"
    seen = "5 of 9 dates are in the training period (2000 to 2001), and not held out"
    title = score_table(scores.assign_attrs(training_dates=seen)).title
    assert title == f"RMSE, global, 12 start dates; {seen}"
    assert set(to_table(scores)["training_dates"]) == {"unknown"}
    table = to_table(scores.assign_attrs(training_dates=seen))
    assert set(table["training_dates"]) == {"5 of 9 dates"}


def test_names_of_files_are_neither_markup_nor_escapes():
    hostile = "[/]\x1b[2J[bold]T"
    scores = make_scores(levels=(500.0,), num_days=1)
    names = [hostile if name == "T" else name for name in scores["variable"].values]
    scores = scores.assign_coords(variable=("channel", names))
    (line,) = [line for line in printed(scores) if "[bold]T" in line]
    assert "[/]\\x1b[2J[bold]T" in line
    assert "\x1b" not in line
