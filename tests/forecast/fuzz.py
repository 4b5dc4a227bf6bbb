"""Changed data sets through `check`, an epoch, `forecast` and `score`, by seeds.

Each part is tried by itself, whatever became of the others: a part that reads a data
set must give the values that numpy computes from the unchanged data, and of a data set
that means other places, levels or times, at least one part must refuse it.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import xarray as xr

from credit_jax.cli.check import main as check
from credit_jax.cli.commands import FAILED, OK, USER_ERROR
from credit_jax.cli.forecast import main as forecast
from credit_jax.cli.score import main as score
from credit_jax.config import load_config
from credit_jax.data import build_loader
from credit_jax.evaluation.scores import read_scores
from credit_jax.models import registry
from credit_jax.named_fields.coordinates import Coordinates
from tests.data.fuzz import HOURS, SCALED, START, TIMES, DataSet, base, data_set, write
from tests.forecast.tiny_run import write_weights
from tests.support.memory import MemoryWatch
from tests.training.tiny import Tiny, TinyConfig

SECONDS = 20.0
NUM_STEPS = 2
STEP = np.timedelta64(6, "h")
INPUT, TARGET = ("U", "T", "SP", "LSM", "tsi"), ("U", "T", "SP", "TP")
METRICS = ("rmse", "mae", "bias", "acc", "missing")
# The page of scores takes half of the time of a data set: of each 20th alone.
PAGES = 20
PLAIN = DataSet((), "second", "nc", 2)
# Relative to a variable's deviation.
BOUND = 1e-4


@dataclass(frozen=True)
class Trained:
    """A run of the unchanged data, its weights, and the coordinates of its data."""

    folder: Path
    params: Mapping[str, np.ndarray]
    like: Coordinates

    def predicted(self, lead: int) -> dict[str, np.ndarray]:
        """The forecast of `lead` steps from START by numpy: name -> (level, lat, lon).

        In double precision; a step is two matrices over the channels of a point.
        """
        state = {k: normalized_at(k, START, self.like) for k in TARGET[:3]}
        fields: dict[str, np.ndarray] = {}
        for step in range(lead):
            others = {k: field_at(k, START + step * STEP, self.like) for k in INPUT[3:]}
            x = np.concatenate([{**state, **others}[name] for name in INPUT])
            hidden = np.tanh(np.einsum("cyx,ch->hyx", x, self.weight("up")))
            y = np.einsum("hyx,hc->cyx", hidden, self.weight("down"))
            y = y + self.weight("bias")[:, None, None]
            parts = np.split(y, [3, 6, 7])
            fields = dict(zip(TARGET, parts, strict=True))
            state = {name: fields[name] for name in TARGET[:3]}
        moments = {name: scale(name, self.like) for name in fields}
        return {k: own * moments[k][1] + moments[k][0] for k, own in fields.items()}

    def weight(self, name: str) -> np.ndarray:
        """A parameter in double precision."""
        (found,) = [v for k, v in self.params.items() if k.endswith(name)]
        return np.asarray(found, np.float64)


def scale(name: str, where: Coordinates) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of the levels of a variable, (level, 1, 1)."""
    both = (base()[kind][name] for kind in ("mean", "std"))
    mean, std = (at_levels(own.values, own, where).reshape(-1, 1, 1) for own in both)
    return mean, std


def normalized_at(name: str, time: np.datetime64, where: Coordinates) -> np.ndarray:
    """As `field_at`, minus the mean, by the deviation."""
    field = field_at(name, time, where)
    mean, std = scale(name, where) if name in SCALED else (0, 1)
    return (field - mean) / std


def field_at(name: str, time: np.datetime64, where: Coordinates) -> np.ndarray:
    """The levels of a variable of the unchanged data at some coordinates, by numpy."""
    array = base()["static" if name == "LSM" else "fields"][name]
    values = array.values
    if "time" in array.dims:
        values = values[list(TIMES.values).index(time)]
    return at_coordinates(values, array, where)


def at_coordinates(
    values: np.ndarray, array: xr.DataArray, where: Coordinates
) -> np.ndarray:
    """Values (..., lat, lon) of an array at other coordinates, (level, lat, lon)."""
    if where.latitude is not None:
        values = values[..., nearest(array.latitude.values, where.latitude), :]
    if where.longitude is not None:
        far = array.longitude.values - np.array(where.longitude)[:, None]
        values = values[..., abs((far + 180) % 360 - 180).argmin(1)]
    return at_levels(values, array, where)


def at_levels(
    values: np.ndarray, array: xr.DataArray, where: Coordinates
) -> np.ndarray:
    """Values (level, ...) or (...) of an array at other levels, double precision."""
    if "level" not in array.dims:
        return values[None].astype(np.float64)
    levels = where.sources["ERA5"].levels
    if levels is not None:
        own = np.array(levels)
        own = own / 100 if own.max() > 90 else own
        values = values[nearest(array.level.values, own)]
    return values.astype(np.float64)


def nearest(points: np.ndarray, wanted: Any) -> np.ndarray:
    return abs(points - np.array(wanted)[:, None]).argmin(1)


def prepare(folder: Path) -> Trained:
    """Writes the unchanged data, a checkpoint, a forecast and its scores."""
    registry.MODELS["tiny"] = registry.ModelEntry(TinyConfig, Tiny)
    folder.mkdir(parents=True)
    write(folder, PLAIN, 0)
    config = load_config(folder / "c.yml")
    like = build_loader(config, split="train").coordinates()
    coordinates = like.to_json()
    params, _ = write_weights(config.model, folder / "run", coordinates=coordinates)
    trained = Trained(folder, params, like)
    problems = [*differences_of_forecast(folder, folder, trained)]
    for name, climatology in (("means", None), ("file", f"{folder}/climatology.nc")):
        places = folder / name, folder, trained, f"{folder}/c.yml", climatology
        scores = differences_of_scores(*places, page=False, fewer=False, gaps=False)
        problems += scores
    assert not problems, problems
    return trained


class RefusedError(Exception):
    """A command refused what it was given."""


def called(command: Callable[[list[str]], int], *arguments: str) -> str:
    """Calls a command; returns what it prints."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = command([*arguments])
    text = shown.getvalue()
    if "Traceback" in text or code not in (OK, FAILED, USER_ERROR):
        raise RuntimeError(f"code {code}: {text[-2000:]}")
    if code != OK:
        raise RefusedError(text)
    return text


def differences_of_epoch(folder: Path, like: Coordinates | None) -> Iterator[str]:
    """Reads an epoch; yields what differs."""
    loader = build_loader(load_config(folder / "c.yml"), split="train", like=like)
    own = loader.coordinates()
    count = 0
    for batch in loader.epoch(0):
        start, end = batch.input_times[0], batch.target_times[0, 0]
        count += 1
        for part, names, at, array in (
            ("x", INPUT, start, batch.x),
            ("y", TARGET, end, batch.y),
        ):
            fields = [normalized_at(name, at, own) for name in names]
            if not np.allclose(array[0, :, 0], np.concatenate(fields), 1e-5, 1e-5):
                yield f"{part} at {start}"
    if count != len(TIMES) - 1:
        yield f"{count} samples, expected {len(TIMES) - 1}"


def differences_of_forecast(folder: Path, out: Path, trained: Trained) -> Iterator[str]:
    """Makes a forecast of changed data from the checkpoint of the run."""
    fixed = ("--config", f"{folder}/c.yml", "--out", f"{out}/forecast")
    fixed += ("--checkpoint", f"{trained.folder}/run", "--format", "zarr")
    chosen = ("--init-time", str(START)[:19], "--steps", str(NUM_STEPS))
    called(forecast, *fixed, *chosen, "--cache", f"{trained.folder}/cache")
    with xr.open_dataset(out / "forecast/forecast.zarr") as store:
        made = store.load().isel(time=0)
    for axis in ("latitude", "longitude"):
        if not np.allclose(made[axis], getattr(trained.like, axis), atol=1e-2):
            yield f"forecast: {axis}"
    for lead in range(NUM_STEPS + 1):
        expected = (
            trained.predicted(lead)
            if lead
            else {name: field_at(name, START, trained.like) for name in TARGET[:3]}
        )
        for name, values in expected.items():
            own = made[name].isel(prediction_timedelta=lead).values
            wrong = abs(own - values) / (scale(name, trained.like)[1] if lead else 1)
            if not wrong.max() <= (BOUND if lead else 0):
                yield f"forecast: {name} at step {lead}: {wrong.max():.3g}"


def differences_of_scores(
    folder: Path,
    made: Path,
    trained: Trained,
    truth: str,
    climatology: str | None,
    *,
    page: bool,
    fewer: bool,
    gaps: bool,
) -> Iterator[str]:
    """Scores a forecast; yields the scores that numpy does not find."""
    options = () if climatology is None else ("--climatology", climatology)
    where = ("--forecast", f"{made}/forecast", "--out", f"{folder}/scores")
    options += ("--truth", truth, "--regions", "global")
    with contextlib.ExitStack() as stack:
        if not page:
            pages = patch(
                "credit_jax.extensions.plots.page.write_page", lambda scores, path: path
            )
            stack.enter_context(pages)
        cache = f"{trained.folder}/cache"
        text = called(score, *where, *options, "--cache", cache)
    scores = read_scores(folder / "scores").sel(region="global")
    variables = scores["variable"].values.tolist()
    known = scores["system"].values.tolist()
    found = {
        metric: scores[metric]
        .transpose("system", "channel", "prediction_timedelta")
        .values
        for metric in METRICS
    }
    with xr.open_dataset(made / "forecast/forecast.zarr") as store:
        fields = store.load().isel(time=0)
    weights = np.cos(np.deg2rad(fields.latitude.values))[:, None]
    weights = weights / weights.sum() / fields.longitude.size
    mean = lambda values: (values * weights).sum((-2, -1))  # noqa: E731
    for name in TARGET:
        channels = [k for k, own in enumerate(variables) if own == name]
        levels = base()["fields"][name].coords.get("level")
        places = [0]
        if levels is not None:
            there = scores["level"].values[channels]
            places = abs(levels.values - there[:, None]).argmin(1).tolist()
        if len(places) != len(channels) or not channels:
            yield f"scores: {name} has {channels}"
            continue
        for left in () if levels is None else np.delete(levels.values, places):
            noted = f"has no level {left:g} of"
            if not fewer or noted not in text:
                yield f"scores: {name} has {channels}"
        for lead in range(1, NUM_STEPS + 1):
            at = START + lead * STEP
            target = field_at(name, at, trained.like)
            means = climate_at(name, at, trained.like, of_file=climatology is not None)
            systems = {
                "forecast": fields[name].isel(prediction_timedelta=lead).values,
                "persistence": field_at(name, START, trained.like),
                "climatology": means,
            }
            for system, values in systems.items():
                field = values.reshape(target.shape)
                error = field - target
                expected = {
                    "rmse": np.sqrt(mean(error**2)),
                    "mae": mean(abs(error)),
                    "bias": mean(error),
                }
                if system != "climatology":
                    anomalies = field - means, target - means
                    squares = [mean(x**2) for x in anomalies]
                    product = mean(anomalies[0] * anomalies[1])
                    expected["acc"] = product / np.sqrt(squares[0] * squares[1])
                # The means of an hour lack what is NaN at one of their times.
                of_means = found["missing"][known.index("climatology"), channels]
                if gaps and of_means[:, lead - 1].any():
                    expected.pop("acc", None)
                lacking = found["missing"][known.index(system), channels]
                if gaps and lacking[:, lead - 1].any():
                    continue  # a chunk of a v3 store that is NaN; it is counted
                for metric, value in expected.items():
                    own = found[metric][known.index(system), channels]
                    value, rmse = value[places], expected["rmse"][places]
                    bound = BOUND * (1 if metric == "acc" else rmse)
                    if not (abs(own[:, lead - 1] - value) <= bound).all():
                        yield f"scores: {metric} of {system}, {name}, step {lead}"


def climate_at(
    name: str, at: np.datetime64, where: Coordinates, *, of_file: bool
) -> np.ndarray:
    """The climatology of a time: of the file, or the mean of the hour in training."""
    hour = int(at.astype("datetime64[h]").astype(int) % 24)
    if of_file:
        array = base()["climatology"][name]
        values = array.values[HOURS.index(hour)]
    else:
        array = base()["fields"][name]
        same = array.values[TIMES.hour == hour].astype(np.float64)
        values = same.mean(0)
    return at_coordinates(values, array, where)


def try_seeds(folder: Path, seeds: range) -> Iterator[tuple[int, str, str]]:
    """Yields seed, change and result: "read", "refused", or what is wrong."""
    memory = MemoryWatch()
    trained = prepare(folder / "plain")
    for seed in seeds:
        given = data_set(seed)
        place = folder / str(seed)
        place.mkdir()
        write(place, given, seed, folder / "unchanged")
        yield seed, f"{given.decisive}", result_of(place, given, trained, seed)
        shutil.rmtree(place)
    yield from memory.problems(seeds.stop)


def result_of(folder: Path, given: DataSet, trained: Trained, seed: int) -> str:
    """Tries all parts with a data set; see `try_seeds`."""
    place, kinds = given.place, ", ".join(given.kinds)
    what = f"{kinds} of {place}, {given.kind} {given.zarr_format}"
    # Read as by a new run, or as by one that goes on.
    like = trained.like if seed % 2 else None
    # The truth of a forecast, and its climatology, by turns of files and of the data.
    of_data = place in ("second", "all") or (place == "static" and seed % 2 == 0)
    truth = f"{folder}/c.yml" if of_data else f"{folder}/truth.{given.kind}"
    made = trained.folder

    def scores() -> Iterator[str]:
        means = None
        if not of_data or made is trained.folder or seed % 2:
            means = f"{folder}/climatology.{given.kind}"
        page, fewer = seed % PAGES == 0, given.lacks_a_level
        places = folder, made, trained, truth, means
        gaps = "missing chunk" in given.kinds and given.zarr_format == 3
        return differences_of_scores(*places, page=page, fewer=fewer, gaps=gaps)

    def checked() -> Iterator[str]:
        called(check, "--config", f"{folder}/c.yml")
        return iter(())

    parts: dict[str, Callable[[], Iterator[str]]] = {
        "check": checked,
        "epoch": partial(differences_of_epoch, folder, like),
        "forecast": partial(differences_of_forecast, folder, folder, trained),
        "score": scores,
    }
    refused: dict[str, str] = {}
    began = time.process_time()
    for part, differences in parts.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wrong = [*differences()]
        except (ValueError, OSError, RefusedError) as error:
            refused[part] = str(error)
            continue
        except Exception as error:
            return f"{what}: {part}: {type(error).__name__}: {error}"
        if wrong:
            return f"{what}: {part}: {len(wrong)} values differ, the first: {wrong[0]}"
        if part == "forecast":
            made = folder
    if time.process_time() - began > SECONDS:
        return f"{what}: took {time.process_time() - began:.0f} s"
    if refused and not given.may_fail:
        part, error = next(iter(refused.items()))
        return f"{what}: {part} refused: {error}"
    if not refused and given.must_fail:
        return f"{what}: read, expected an error"
    return "refused" if refused else "read"
