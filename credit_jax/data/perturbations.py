"""Perturbations of the initial states of ensemble members, a class each.

Member 0 is not perturbed. The perturbation of any other member depends only on the
seed, its start date and its number: it does not depend on the mesh or on the other
members of the batch, and is reproducible. Amplitudes are in units of the standard
deviation of the variable over the globe, at each level of the initial state.

To add a perturbation, write a class here and a row of `TYPES` in
`tests/forecast/test_ensembles.py`.
"""

from __future__ import annotations

import abc
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float
from pydantic import Field

from credit_jax.config import StrictModel, parse
from credit_jax.config.components import Registry
from credit_jax.config.dates import Timestep
from credit_jax.data.forecast_data import FirstStep, ForecastReader, Perturb
from credit_jax.data.schedule import ForecastSchedule, Task, steps_of
from credit_jax.physics.harmonics import legendre_functions
from credit_jax.transforms import FieldTree

PROGNOSTIC, SECTION = "prognostic", "inference.perturbation"
# Harmonics whose variance is below this fraction of the largest are left out.
_SMALLEST = 1e-8
# Tasks -> {key: (batch, level, lat, lon) to add}.
Changes = Callable[[Sequence[Task]], Mapping[str, np.ndarray]]
# (level, lat, lon) of standard normal numbers.
Draw = Callable[[np.random.Generator, tuple[int, int, int]], np.ndarray]
# (states, their dates, number of steps of each, tasks, number of the first step among
# all before the start dates) -> prognostic fields after each step, by key: (batch,
# level, lat, lon). What follows in a forecast of fewer steps has no meaning.
Advance = Callable[
    [FirstStep, Sequence[np.datetime64], Sequence[int], Sequence[Task], int],
    list[dict[str, np.ndarray]],
]


@dataclass(frozen=True)
class Members:
    """The forecasts whose members are perturbed."""

    seed: int  # of all members
    reader: ForecastReader  # reader of states, without perturbations
    grid: tuple[np.ndarray, np.ndarray]  # latitudes and longitudes, degrees
    advance: Advance  # runs the model before the start dates
    # (plan, model, weights, outputs) of the forecasts; None outside of a run.
    run: tuple[Any, ...] | None = None

    def dates(self, tasks: Sequence[Task], steps: Sequence[int]) -> list[np.datetime64]:
        """The date a number of steps after the start of each task."""
        of = self.reader.schedule.valid_time
        return [of(task.start, k) for task, k in zip(tasks, steps, strict=True)]


class Perturbation(StrictModel, abc.ABC):
    """What perturbs the initial states of all members but the first.

    `runs_model` is whether `bind` returns `Changes`, which are computed with the model,
    instead of a function of the states.
    """

    runs_model: ClassVar[bool] = False

    @abc.abstractmethod
    def bind(self, members: Members) -> Any:
        """Returns a `Perturb`, or `Changes` if it runs the model."""

    def states(self, schedule: ForecastSchedule) -> list[int]:
        """Steps before a start date at which states are needed; 0 is the start."""
        return [0]

    def unknown_variables(self, keys: Iterable[str]) -> list[str]:
        """What is wrong with the names of variables, one line at most."""
        return []

    def problems(
        self, schedule: ForecastSchedule, frames: int, draws_noise: bool
    ) -> list[str]:
        """Why the members of a schedule cannot be perturbed, a line each."""
        return []

    def cost(self, starts: str = "each start date") -> str:
        """What it costs, for notes; "" if that is little."""
        return ""

    def identity(self) -> dict[str, Any]:
        """What determines the perturbed states."""
        (name,) = (k for k, cls in PERTURBATIONS.items() if cls is type(self))
        return {"type": name, **self.model_dump(mode="json")}


PERTURBATIONS: Registry[type[Perturbation]] = Registry("perturbation", Perturbation)


def parse_perturbation(section: Mapping[str, Any]) -> Perturbation:
    """Parses `inference.perturbation`; keys of other types have no effect."""
    name = str(section.get("type") or "spherical")
    cls = PERTURBATIONS.find(name, f"{SECTION}.type")
    classes = map(PERTURBATIONS.find, PERTURBATIONS.names)
    keys = {key for each in classes for key in each.model_fields}
    others = {"type", *keys} - cls.model_fields.keys()
    return parse(cls, {k: v for k, v in section.items() if k not in others}, SECTION)


class Scaled(Perturbation):
    """A perturbation of a given size.

    Attributes:
        std: standard deviation relative to that of the variable over the globe, at each
            level of the initial state; a number, or a mapping of short names to
            numbers, which perturbs only these variables.
    """

    std: float | dict[str, float] = 0.05

    def unknown_variables(self, keys: Iterable[str]) -> list[str]:
        parts = [key.split("/") for key in keys]
        names = dict.fromkeys(n for _, kind, _, n in parts if kind == PROGNOSTIC)
        by_name = self.std if isinstance(self.std, dict) else {}
        unknown = [name for name in by_name if name not in names]
        if not unknown:
            return []
        return [
            f"{SECTION}.std: {', '.join(unknown)}: no prognostic variable; there are: "
            f"{', '.join(names)}"
        ]

    def deviation(
        self, key: str, initial: np.ndarray, latitude: np.ndarray
    ) -> np.ndarray | None:
        """(level, 1, 1) standard deviation of the perturbation; None for none."""
        _, kind, _, name = key.split("/")[:4]
        std = self.std.get(name) if isinstance(self.std, dict) else self.std
        if kind != PROGNOSTIC or not std:
            return None
        wide = initial.astype(np.float64)
        return std * _rms(wide - _mean(wide, latitude), latitude)


class _Noise(Scaled):
    """Noise, drawn for each variable of a member by itself."""

    @abc.abstractmethod
    def draw_on(self, latitude: np.ndarray, longitude: np.ndarray) -> Draw:
        """Returns the function that draws standard normal numbers on a grid."""

    def bind(self, members: Members) -> Perturb:
        """Returns the function that adds noise to the newest time of every field."""
        draw, latitude = self.draw_on(*members.grid), members.grid[0]
        keys = member_keys(members.seed, members.reader.schedule)

        def noise(
            tasks: Sequence[Task], key: str, index: int, initial: np.ndarray
        ) -> np.ndarray | None:
            task, std = tasks[index], self.deviation(key, initial, latitude)
            if std is None or task.member == 0:
                return None
            high, low = (int(word) for word in keys[task.start, task.member])
            # Python's own hash of a string differs from process to process.
            words = [high << 32 | low, zlib.crc32(key.encode())]
            generator = np.random.Generator(np.random.Philox(key=words))
            return std * draw(generator, initial.shape)

        return lambda fields, tasks: add(fields, partial(noise, tasks))


@PERTURBATIONS.register("gaussian")
class Gaussian(_Noise):
    """Noise, independent at every point."""

    def draw_on(self, latitude: np.ndarray, longitude: np.ndarray) -> Draw:
        return lambda generator, shape: generator.standard_normal(shape)


@PERTURBATIONS.register("spherical")
class Spherical(_Noise):
    """Noise, smooth on the sphere; the default.

    Attributes:
        length_scale: length scale, in degrees.
    """

    length_scale: float = Field(default=20.0, gt=0)

    def draw_on(self, latitude: np.ndarray, longitude: np.ndarray) -> Draw:
        if latitude.ndim == 2:
            raise ValueError(
                f"{SECTION}.type: spherical noise needs rows of one latitude; on this "
                "curvilinear grid take gaussian, bred or lagged"
            )
        return spherical_noise(latitude, longitude, self.length_scale)


def spherical_noise(
    latitude: np.ndarray, longitude: np.ndarray, length_scale: float
) -> Draw:
    """Isotropic Gaussian fields of variance 1, independent for each level."""
    # The correlation of two points at an angle t is close to exp(-(t / scale)^2 / 2).
    # It is a sum of spherical harmonics whose variance falls with the degree l as
    # exp(-l (l + 1) scale^2 / 2): no seam, and no singularity at the poles.
    scale = np.deg2rad(length_scale)
    last = int(np.ceil(np.sqrt(-2 * np.log(_SMALLEST)) / scale))
    degree = np.arange(last + 1)
    power = np.exp(-degree * (degree + 1) * scale**2 / 2)
    # Standard deviation of the coefficients of each degree.
    deviations = np.sqrt(power / np.sum((2 * degree + 1) * power))
    legendre = legendre_functions(latitude, len(degree))
    angles = np.deg2rad(longitude)[None] * degree[:, None]
    waves = np.stack([np.cos(angles), np.sin(angles)])

    def draw(
        rng: np.random.Generator, shape: tuple[int, int, int]
    ) -> Float[np.ndarray, "level lat lon"]:
        random = rng.standard_normal((shape[0], 2, len(degree), len(degree)))
        random *= deviations[:, None]
        # (level, 2, order, lat): sums over degrees.
        rows = np.einsum("kclm,lmy->kcmy", random, legendre)
        return np.einsum("kcmy,cmx->kyx", rows, waves)

    return draw


@PERTURBATIONS.register("bred")
class Bred(Scaled):
    """Bred vectors: differences of forecasts, grown and rescaled in cycles.

    Gaussian noise is added to the analysis `num_cycles` steps before the start date.
    Each cycle runs one step from the analysis and one from the perturbed analysis;
    their difference, rescaled variable by variable, is added to the next analysis.

    Attributes:
        num_cycles: number of breeding cycles of one step each.
    """

    num_cycles: int = Field(default=5, ge=1)

    runs_model: ClassVar = True

    def states(self, schedule: ForecastSchedule) -> list[int]:
        return [*range(self.num_cycles + 1)] if schedule.num_members > 1 else [0]

    def bind(self, members: Members) -> Changes:
        noise, reader = Gaussian(std=self.std).bind(members), members.reader
        latitude = members.grid[0]

        def breed(tasks: Sequence[Task]) -> Mapping[str, np.ndarray]:
            bred: dict[str, np.ndarray] = {}
            ones = [1] * len(tasks)
            for number in range(self.num_cycles):
                dates = members.dates(tasks, [number - self.num_cycles] * len(tasks))
                perturb = partial(add_changes, bred) if bred else noise
                base, other = reader.at(dates), reader.at(dates, tasks, perturb)
                control, changed = (
                    members.advance(first, dates, ones, tasks, number)[0]
                    for first in (base, other)
                )
                bred = {}
                for key, field in control.items():
                    difference = changed[key] - field
                    # Of the amplitude of the variable; none for member 0.
                    bred[key] = np.zeros_like(difference)
                    for index, task in enumerate(tasks):
                        std = self.deviation(key, base.fields[key][index], latitude)
                        size = _rms(difference[index], latitude)
                        if std is not None and task.member > 0:
                            zero = np.zeros_like(std)
                            factor = np.divide(std, size, out=zero, where=size > 0)
                            bred[key][index] = difference[index] * factor
            return bred

        return breed


@PERTURBATIONS.register("lagged")
class Lagged(Perturbation):
    """Lagged starts: member m starts from the forecast begun m lags earlier.

    Attributes:
        lag: time between the start dates of the members ("6h").
    """

    lag: Timestep = "6h"

    runs_model: ClassVar = True

    def states(self, schedule: ForecastSchedule) -> list[int]:
        if schedule.num_members == 1:
            return [0]
        steps = steps_of(self.lag, schedule.timestep, f"{SECTION}.lag")
        return [steps * member for member in range(schedule.num_members)]

    def bind(self, members: Members) -> Changes:
        reader, steps_of_member = members.reader, self.states(members.reader.schedule)

        def changes(tasks: Sequence[Task]) -> Mapping[str, np.ndarray]:
            lags = [steps_of_member[task.member] for task in tasks]
            if not any(lags):
                return {}
            dates = members.dates(tasks, [-lag for lag in lags])
            analysis = reader.at(members.dates(tasks, [0] * len(tasks))).fields
            steps = [max(lag, 1) for lag in lags]
            advanced = members.advance(reader.at(dates), dates, steps, tasks, 0)
            zero = {key: np.zeros_like(x) for key, x in analysis.items()}
            return {
                key: np.stack(
                    [
                        advanced[lag - 1][key][i] - analysis[key][i]
                        if lag
                        else zero[key][i]
                        for i, lag in enumerate(lags)
                    ]
                )
                for key in advanced[0]
            }

        return changes


def _rms(values: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    """(level, 1, 1) root of the mean square over the globe."""
    return np.sqrt(_mean(np.square(values.astype(np.float64)), latitude))


def _mean(values: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    cosine = np.cos(np.deg2rad(latitude))
    cosine = cosine[:, None] if cosine.ndim == 1 else cosine
    weights = np.broadcast_to(cosine / cosine.mean(), values.shape[-2:])
    return (values * weights).mean(axis=(-2, -1), keepdims=True)


def add(
    fields: FieldTree,
    change: Callable[[str, int, np.ndarray], np.ndarray | None],
) -> dict[str, dict[str, np.ndarray]]:
    """Adds changes to the newest time of fields (batch, level, time, lat, lon)."""
    new: dict[str, dict[str, np.ndarray]] = {}
    for source, source_fields in fields.items():
        new[source] = dict(source_fields)
        for key, array in source_fields.items():
            parts = [change(key, index, x[:, -1]) for index, x in enumerate(array)]
            if any(part is not None for part in parts):
                array = array.copy()
                for index, part in enumerate(parts):
                    if part is not None:
                        array[index, :, -1] += part.astype(array.dtype)
                new[source][key] = array
    return new


def add_changes(
    changes: Mapping[str, np.ndarray], fields: FieldTree, tasks: Sequence[Task]
) -> FieldTree:
    """Adds changes, key -> (batch, level, lat, lon), to the fields of their samples."""
    del tasks  # A `Perturb` is called with them.
    return add(
        fields, lambda key, index, _: changes[key][index] if key in changes else None
    )


def member_keys(seed: int, schedule: ForecastSchedule) -> np.ndarray:
    """(start, member, 2) uint32: the key of every member of every start date."""
    # The key of the seed, with the minutes since 1970 of the start date and then the
    # number of the member folded in; noise inside a model is another function of it.
    minutes = schedule.starts.astype("datetime64[m]").astype(np.int64)
    words = (minutes & 0xFFFFFFFF).astype(np.uint32)

    def key(start: Any, member: Any) -> Any:
        start_key = jax.random.fold_in(jax.random.key(seed), start)
        return jax.random.key_data(jax.random.fold_in(start_key, member))

    members = np.arange(schedule.num_members, dtype=np.uint32)
    over = jax.vmap(jax.vmap(key, (None, 0)), (0, None))
    return np.asarray(over(words, members))
