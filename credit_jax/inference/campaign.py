"""Many forecasts: reading, computing and writing beside each other.

One thread reads ahead, this one starts steps on the devices, one takes their results to
the host, and some write files. The number of steps in flight is limited, so that the
memory depends neither on the length nor on the number of the forecasts.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from credit_jax.inference.archive import Archive
from credit_jax.inference.autoregression import ForecastStep
from credit_jax.inference.online_scores import GroupScores, OnlineScores
from credit_jax.inference.outputs import Outputs
from credit_jax.inference.perturbation import PreparedPerturbation
from credit_jax.inference.reading import FirstStep, ForecastReader
from credit_jax.inference.schedule import Task
from credit_jax.inference.sharing import Share, added_up, wait_for_all
from credit_jax.inference.stores import Job, NoStore, Store, TaskWriter
from credit_jax.io.workers import ReadAhead, Workers
from credit_jax.nn.noise import Noise

# Steps whose input is read in advance, and steps on the devices.
NUM_AHEAD, NUM_IN_FLIGHT = 3, 2


class NonFiniteForecastError(RuntimeError):
    """A forecast has values that are NaN or infinite."""


@dataclass(frozen=True)
class Times:
    """How long a campaign took, in seconds.

    Attributes:
        unroll: steps on the devices, the first one, which is compiled, left out.
        read: initial states and forcing, beside the other two.
        write: copies to the host, and files.
        total: from the end of the first step to the end.
    """

    unroll: float
    read: float
    write: float
    total: float

    @property
    def idle(self) -> float:
        """Share of the total in which the devices had nothing to do."""
        return max(0.0, 1 - self.unroll / self.total) if self.total > 0 else 0.0


@dataclass(frozen=True)
class Summary:
    """What a campaign did.

    Attributes:
        num_forecasts: that were made.
        num_done: that were there already.
        missing: values that were not finite, by variable.
        times: see `Times`.
        stopped: what ended it before the last group; None if it came to its end.
    """

    num_forecasts: int
    num_done: int
    missing: dict[str, int]
    times: Times
    stopped: str | None = None


@dataclass
class _Progress:
    """Writes the record of a forecast when its last file is written."""

    archive: Archive
    task: Task
    writer: TaskWriter
    missing: Counter = field(default_factory=Counter)
    _open: int = 1
    _lock: Any = field(default_factory=threading.Lock)

    def job(self, write: Job) -> Job:
        """A job that counts."""
        with self._lock:
            self._open += 1

        def run() -> None:
            write()
            self.close()

        return run

    def close(self) -> None:
        """A part of the forecast is written."""
        with self._lock:
            self._open -= 1
            last = self._open == 0
        if last:
            self.archive.mark(self.task, dict(self.missing))


@dataclass
class _DeviceClock:
    """Adds up when the devices were busy; steps run one after the other."""

    busy: float = 0.0
    first_end: float = 0.0
    last_end: float = 0.0

    def wait(self, dispatched: float, result: Any) -> None:
        """Waits for a step that was started at some time."""
        jax.block_until_ready(result)
        now = time.perf_counter()
        if self.first_end:
            self.busy += now - max(dispatched, self.last_end)
        self.first_end, self.last_end = self.first_end or now, now


@dataclass(frozen=True)
class Campaign:
    """Forecasts that are made and written.

    Attributes:
        step: the compiled step.
        weights: of the model, after spectral norm.
        reader: of what the steps are given.
        store: where they are written.
        archive: which are done.
        outputs: what is written of them.
        groups: tasks that run side by side.
        size: of a group, of all processes; smaller ones are filled up with copies.
        num_steps: of a forecast.
        written: steps that are written.
        num_writers: threads that write files.
        max_pending: files that may wait to be written.
        fill_nan: whether values that are not finite are written as missing and counted;
            else they are an error.
        progress: called with the number of forecasts after each group.
        scores: of the forecasts, computed beside them; None computes none.
        noise: of models that draw noise, another one at each step.
        stop: asked before each group but the first, by all processes together: what
            ends the campaign there, or None.
    """

    step: ForecastStep
    weights: Any
    reader: ForecastReader
    store: Store
    archive: Archive
    outputs: Outputs
    groups: Sequence[Sequence[Task]]
    size: int
    num_steps: int
    written: Sequence[int]
    num_writers: int = 4
    max_pending: int | None = None
    fill_nan: bool = False
    progress: Callable[[int], None] = lambda done: None
    scores: OnlineScores | None = None
    noise: Noise | None = None
    stop: Callable[[], str | None] = lambda: None

    def run(self) -> Summary:
        """Makes the forecasts that are not there yet.

        Raises:
            NonFiniteForecastError: values are not finite, and are not to be filled.
            OSError, ValueError: something cannot be read or written.
        """
        if jax.process_index() == 0:
            self.archive.create()
            self.store.create()
        wait_for_all("the store")
        todo = [g for g in self.groups if not all(map(self.archive.done, g))]
        missing_of = [sum(not self.archive.done(task) for task in g) for g in todo]
        num_missing = sum(missing_of)
        # From here on forecasts are marked as done, which others must not see before.
        wait_for_all("groups of forecasts")
        pending = self.max_pending or 2 * self.num_writers
        mesh = self.step.model.mesh
        share = Share(mesh, self.size)
        full = [[*g, *[g[-1]] * (self.size - len(g))] for g in todo]
        mine = [[g[place] for place in share.positions] for g in full]
        stream = self.reader.stream(mine, self.num_steps, mesh, share.ranks)
        reader = ReadAhead(stream, NUM_AHEAD)
        references = None
        if self.scores is not None:
            references = ReadAhead(self.scores.stream(full), NUM_AHEAD)
        prepared = self.reader.perturb
        devices = Workers(1, NUM_IN_FLIGHT, "devices")
        host = Workers(1, NUM_IN_FLIGHT, "host")
        files = Workers(self.num_writers, pending, "write")
        clock, made = _DeviceClock(), list[_Progress]()
        workers = (devices, host, files)
        stopped = None
        try:
            for number, (group, filled) in enumerate(zip(todo, full, strict=True)):
                stopped = self.stop() if number else None
                if stopped:
                    missing_of = missing_of[:number]
                    break
                if isinstance(prepared, PreparedPerturbation):
                    prepared.prepare(filled, mine[number])
                tasks = [
                    self._progress(group[place])
                    if place < len(group) and place in share.written
                    else None
                    for place in share.positions
                ]
                scored = None
                if self.scores is not None and references is not None:
                    scored = GroupScores(self.scores, references, group)
                self._forecast(
                    tasks,
                    reader,
                    devices,
                    host,
                    files,
                    clock,
                    scored,
                    share,
                    self._noise_of(group),
                )
                made += [task for task in tasks if task is not None]
                self.progress(sum(missing_of[: number + 1]))
            for own in workers:
                own.close()
        except BaseException:
            for own in workers:
                own.cancel()
            raise
        finally:
            if isinstance(prepared, PreparedPerturbation):
                prepared.close()
            reader.close()
            if references is not None:
                references.close()
        write = host.seconds + files.seconds
        total = time.perf_counter() - clock.first_end if clock.first_end else 0.0
        times = Times(clock.busy, reader.seconds, write, total)
        missing = sum((task.missing for task in made), Counter())
        names = [variable.name for variable in self.outputs.variables]
        found, count = added_up(missing, names), sum(missing_of)
        there = sum(map(len, self.groups)) - num_missing
        return Summary(count, there, found, times, stopped)

    def _noise_of(self, group: Sequence[Task]) -> Noise | None:
        """The noise of a group, whose forecasts are told apart by their places."""
        if self.noise is None:
            return None
        return self.noise.fold_in(group[0].start).fold_in(group[0].member)

    def _progress(self, task: Task) -> _Progress | None:
        """None for a forecast that is done."""
        if self.archive.done(task):
            return None
        return _Progress(self.archive, task, self.store.writer(task))

    def _forecast(
        self,
        tasks: Sequence[_Progress | None],
        reader: ReadAhead,
        devices: Workers,
        host: Workers,
        files: Workers,
        clock: _DeviceClock,
        scored: GroupScores | None,
        share: Share,
        noise: Noise | None,
    ) -> None:
        """Runs a group of forecasts and hands over what is written and scored."""
        first: FirstStep = next(reader)
        state, constants = self.step.start(first.arrays)
        if self.store.first_step == 0:
            fields = self._initial(first.fields)
            host.submit(lambda: self._deliver(tasks, 0, fields, files))
        forcing: Any = {}
        for step in range(1, self.num_steps + 1):
            if step < self.num_steps:
                forcing = next(reader)
            start = time.perf_counter()
            own = None if noise is None else noise.fold_in(step)
            state, found = self.step(self.weights, state, constants, forcing, own)
            sums = None
            if scored is not None and step in self.written:
                sums = scored.start(found)
                host.submit(
                    lambda step=step, sums=sums: self._score(
                        tasks, scored, step, sums, share
                    )
                )
            both = found, sums
            devices.submit(lambda start=start, both=both: clock.wait(start, both))
            if step in self.written and not isinstance(self.store, NoStore):
                whole = share.with_whole_rows(found)
                host.submit(
                    lambda step=step, whole=whole: self._deliver(
                        tasks, step, self._cropped(share.on_host(whole)), files
                    )
                )
        if scored is not None:
            host.submit(scored.save)
        host.submit(lambda: self._finish(tasks, files))

    def _score(
        self,
        tasks: Sequence[_Progress | None],
        scored: GroupScores,
        step: int,
        sums: Any,
        share: Share,
    ) -> None:
        """Takes the sums of a step; without fields, they tell what is not finite."""
        counts = scored.take(sums)
        if not isinstance(self.store, NoStore):
            return
        for task, place in zip(tasks, share.positions, strict=True):
            if task is None:
                continue
            for name, count in counts[place].items():
                self._report(name, count, step, task)

    def _initial(self, fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The variables of the initial state, (batch, level, lat, lon)."""
        return {
            key: fields[key] if levels is None else fields[key][:, list(levels)]
            for key, levels in self.outputs.wanted.items()
            if key in fields
        }

    def _cropped(self, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Without padding rows: (batch, level, lat, lon)."""
        rows = len(self.outputs.latitude)
        return {key: x[:, :, 0, :rows] for key, x in found.items()}

    def _deliver(
        self,
        tasks: Sequence[_Progress | None],
        step: int,
        fields: Mapping[str, np.ndarray],
        files: Workers,
    ) -> None:
        """Hands a step of every forecast to its writer."""
        for index, task in enumerate(tasks):
            if task is None:
                continue
            own = {key: array[index] for key, array in fields.items()}
            own = {key: self._finite(key, x, step, task) for key, x in own.items()}
            for job in task.writer.add(step, own):
                files.submit(task.job(job))

    def _finite(
        self, key: str, array: np.ndarray, step: int, task: _Progress
    ) -> np.ndarray:
        """The array with missing values as NaN; they are counted, or an error."""
        bad = ~np.isfinite(array)
        if not bad.any():
            return array
        self._report(key.split("/")[-1], int(bad.sum()), step, task)
        return np.where(bad, np.float32(np.nan), array)

    def _report(self, name: str, count: int, step: int, task: _Progress) -> None:
        """Counts values that are not finite, or raises."""
        if not self.fill_nan:
            schedule = self.reader.schedule
            raise NonFiniteForecastError(
                f"{name} has {count} values that are NaN or infinite at step {step} "
                f"(lead {schedule.lead(step)}) of the forecast from "
                f"{str(schedule.starts[task.task.start])[:16]}, member "
                f"{task.task.member}; --nan fill writes them as missing"
            )
        task.missing[name] += count

    def _finish(self, tasks: Sequence[_Progress | None], files: Workers) -> None:
        for task in tasks:
            if task is not None:
                for job in task.writer.finish():
                    files.submit(task.job(job))
                task.close()
