"""Initial perturbations of ensemble members: noise, bred vectors, lagged starts.

Member 0 is not perturbed. The perturbation of any other member depends only on the
seed, its start date and its number: it does not depend on the mesh or on the other
members of the batch, and is reproducible. Amplitudes are in units of the standard
deviation of the variable over the globe, at each level of the initial state.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from credit_jax.config.inference import PerturbationConfig
from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.nn.noise import Noise
from credit_jax.physics.harmonics import legendre_functions
from credit_jax.transforms import FieldTree

# Harmonics whose variance is below this fraction of the largest are left out.
_SMALLEST = 1e-8


@dataclass(frozen=True, eq=False)
class SphericalNoise:
    """Isotropic Gaussian fields of variance 1 on a grid of latitudes and longitudes.

    The correlation of two points at an angle t is close to exp(-(t / scale)^2 / 2). It
    is a sum of spherical harmonics whose variance falls as exp(-l (l + 1) scale^2 / 2)
    with the degree l, so that it has neither a seam nor a singularity at the poles.

    Attributes:
        latitude, longitude: (lat,) and (lon,) degrees.
        length_scale: degrees.
    """

    latitude: np.ndarray
    longitude: np.ndarray
    length_scale: float

    def draw(
        self, rng: np.random.Generator, shape: tuple[int, int, int]
    ) -> Float[np.ndarray, "level lat lon"]:
        """Draws independent fields, one for each level.

        Args:
            rng: generator of the numbers.
            shape: (level, lat, lon).
        """
        degrees = len(self._deviations)
        random = rng.standard_normal((shape[0], 2, degrees, degrees))
        random *= self._deviations[:, None]
        # (level, 2, order, lat): sums over degrees.
        rows = np.einsum("kclm,lmy->kcmy", random, self._legendre)
        angles = np.deg2rad(self.longitude)[None] * np.arange(degrees)[:, None]
        waves = np.stack([np.cos(angles), np.sin(angles)])
        return np.einsum("kcmy,cmx->kyx", rows, waves)

    @cached_property
    def _deviations(self) -> np.ndarray:
        """(degree,) standard deviation of each coefficient."""
        scale = np.deg2rad(self.length_scale)
        last = int(np.ceil(np.sqrt(-2 * np.log(_SMALLEST)) / scale))
        degree = np.arange(last + 1)
        power = np.exp(-degree * (degree + 1) * scale**2 / 2)
        return np.sqrt(power / np.sum((2 * degree + 1) * power))

    @cached_property
    def _legendre(self) -> np.ndarray:
        return legendre_functions(self.latitude, len(self._deviations))


PROGNOSTIC = "prognostic"
# (level, lat, lon) of standard normal numbers.
Draw = Callable[[np.random.Generator, tuple[int, int, int]], np.ndarray]


@dataclass(frozen=True, eq=False)
class Amplitude:
    """The amplitude of the perturbation of each variable.

    Attributes:
        std: a number, or one for each variable by short name; other variables are not
            perturbed.
        latitude: (lat,) or (y, x) degrees, for means over the globe.
    """

    std: float | Mapping[str, float]
    latitude: np.ndarray

    def of(self, key: str, initial: np.ndarray) -> np.ndarray | None:
        """(level, 1, 1) standard deviation of the perturbation; None for none.

        Args:
            key: key of the variable; only prognostic ones are perturbed.
            initial: (level, lat, lon) its unperturbed state.
        """
        _, kind, _, name = key.split("/")[:4]
        std = self.std.get(name) if isinstance(self.std, Mapping) else self.std
        if kind != PROGNOSTIC or not std:
            return None
        wide = initial.astype(np.float64)
        return std * self.rms(wide - self._mean(wide))

    def rms(self, values: np.ndarray) -> np.ndarray:
        """(level, 1, 1) root of the mean square over the globe."""
        return np.sqrt(self._mean(np.square(values.astype(np.float64))))

    def _mean(self, values: np.ndarray) -> np.ndarray:
        cosine = np.cos(np.deg2rad(self.latitude))
        cosine = cosine[:, None] if cosine.ndim == 1 else cosine
        weights = np.broadcast_to(cosine / cosine.mean(), values.shape[-2:])
        return (values * weights).mean(axis=(-2, -1), keepdims=True)


@dataclass(frozen=True, eq=False)
class NoisePerturbation:
    """Adds noise to initial states: (fields, tasks) -> fields.

    Attributes:
        draw: draws standard normal numbers.
        amplitude: amplitude of each variable.
        keys: (start, member, 2) uint32, of `member_keys`.
    """

    draw: Draw
    amplitude: Amplitude
    keys: np.ndarray

    def __call__(self, fields: FieldTree, tasks: Sequence[Task]) -> FieldTree:
        """Adds noise to the newest time of every field; earlier times are unchanged.

        Args:
            fields: {source: {key: (batch, level, time, lat, lon)}}, physical units.
            tasks: tasks of the batch.
        """

        def noise(key: str, place: int, initial: np.ndarray) -> np.ndarray | None:
            task, std = tasks[place], self.amplitude.of(key, initial)
            if std is None or task.member == 0:
                return None
            return std * self.draw(self.generator(task, key), initial.shape)

        return add(fields, noise)

    def generator(self, task: Task, key: str) -> np.random.Generator:
        """Random number generator of a variable of a member."""
        high, low = (int(word) for word in self.keys[task.start, task.member])
        # Python's own hash of a string differs from process to process.
        words = [high << 32 | low, zlib.crc32(key.encode())]
        return np.random.Generator(np.random.Philox(key=words))


def add(
    fields: FieldTree,
    change: Callable[[str, int, np.ndarray], np.ndarray | None],
) -> dict[str, dict[str, np.ndarray]]:
    """Adds a change to the newest time of fields, which are copied.

    Args:
        fields: {source: {key: (batch, level, time, lat, lon)}}.
        change: (key, index of the sample, its newest field (level, lat, lon)) -> change
            of the same shape, or None.
    """
    new: dict[str, dict[str, np.ndarray]] = {}
    for source, source_fields in fields.items():
        new[source] = dict(source_fields)
        for key, array in source_fields.items():
            parts = [change(key, place, x[:, -1]) for place, x in enumerate(array)]
            if any(part is not None for part in parts):
                array = array.copy()
                for index, part in enumerate(parts):
                    if part is not None:
                        array[index, :, -1] += part.astype(array.dtype)
                new[source][key] = array
    return new


@dataclass
class PreparedPerturbation:
    """Adds perturbations that another thread computes, as they need the model.

    `prepare` is called with each group of tasks before it runs; the reading thread
    waits for it.

    Attributes:
        make: tasks -> {key: (batch, level, lat, lon) to add}.
        waited: seconds for which the reading thread waited for them.
    """

    make: Callable[[Sequence[Task]], Mapping[str, np.ndarray]]
    waited: float = 0.0
    _ready: dict[Task, dict[str, np.ndarray]] = field(default_factory=dict)
    _changed: Any = field(default_factory=threading.Condition)
    _closed: bool = False

    def prepare(self, tasks: Sequence[Task], retained: Sequence[Task]) -> None:
        """Makes the perturbations of a group.

        Args:
            tasks: the group, the same in every process.
            retained: those of this process.
        """
        perturbations = self.make(tasks)
        with self._changed:
            for index, task in enumerate(tasks):
                if task in retained:
                    self._ready[task] = {
                        key: x[index] for key, x in perturbations.items()
                    }
            self._changed.notify_all()

    def close(self) -> None:
        """Releases a waiting thread, which raises RuntimeError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __call__(self, fields: FieldTree, tasks: Sequence[Task]) -> FieldTree:
        """See `NoisePerturbation`."""
        start = time.perf_counter()
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or all(task in self._ready for task in tasks)
            )
            self.waited += time.perf_counter() - start
            if self._closed:
                raise RuntimeError("the campaign has ended")
            ready = {task: self._ready[task] for task in tasks}
            for task in ready:
                del self._ready[task]
        return add(fields, lambda key, place, _: ready[tasks[place]].get(key))


def member_keys(seed: int, schedule: ForecastSchedule) -> np.ndarray:
    """(start, member, 2) uint32: the key of every member of every start date.

    Noise inside a model is drawn with the same keys, by another function of them.

    The key is that of the seed, with the minutes since 1970 of the start date and then
    the number of the member folded in.
    """
    minutes = schedule.starts.astype("datetime64[m]").astype(np.int64)
    words = (minutes & 0xFFFFFFFF).astype(np.uint32)

    def key(start: Any, member: Any) -> Any:
        start_key = jax.random.fold_in(jax.random.key(seed), start)
        return jax.random.key_data(jax.random.fold_in(start_key, member))

    members = np.arange(schedule.num_members, dtype=np.uint32)
    over = jax.vmap(jax.vmap(key, (None, 0)), (0, None))
    return np.asarray(over(words, members))


def gaussian(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """Independent standard normal numbers, (level, lat, lon)."""
    return rng.standard_normal(shape)


def noise_perturbation(
    config: PerturbationConfig,
    seed: int,
    schedule: ForecastSchedule,
    latitude: np.ndarray,
    longitude: np.ndarray,
) -> NoisePerturbation:
    """Builds the noise of a config, "gaussian" or "spherical".

    Args:
        config: its type, amplitude and length scale.
        seed: seed of all members.
        schedule: start dates and members.
        latitude, longitude: degrees.

    Raises:
        ValueError: spherical noise on a curvilinear grid.
    """
    draw: Draw = gaussian
    if config.type == "spherical":
        if latitude.ndim == 2:
            raise ValueError(
                "inference.perturbation.type: spherical noise needs rows of one "
                "latitude; on this curvilinear grid take gaussian, bred or lagged"
            )
        draw = SphericalNoise(latitude, longitude, config.length_scale).draw
    amplitude = Amplitude(config.std, latitude)
    return NoisePerturbation(draw, amplitude, member_keys(seed, schedule))


@dataclass(frozen=True, eq=False)
class MemberNoise:
    """The noise inside a model: of each member by its key.

    Attributes:
        keys: (start, member, 2) uint32, of `member_keys`.
    """

    keys: np.ndarray

    def of(self, tasks: Sequence[Task]) -> Noise:
        """The noise of a batch; each step of a forecast folds in its number.

        Args:
            tasks: tasks of the batch, in all processes.
        """
        words = np.stack([self.keys[task.start, task.member] for task in tasks])
        return Noise(jax.random.wrap_key_data(jnp.asarray(words)))


def member_noise(
    seed: int, schedule: ForecastSchedule, model: ParallelModel
) -> MemberNoise | None:
    """The noise of the members of a schedule; None for models that draw none."""
    if not model.model_def.draws_noise:
        return None
    return MemberNoise(member_keys(seed, schedule))
