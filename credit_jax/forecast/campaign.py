"""Many forecasts, with reading, computing and writing in parallel.

One thread reads ahead, the calling one starts steps on the devices, one copies their
results to the host, and some write files. The number of steps in flight is limited, so
that the memory depends neither on the length nor on the number of the forecasts.

A `Campaign` starts the steps of batch after batch. The `_Results` of a batch take them
to scores and files, on the `_Threads` that all batches share.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr

from credit_jax.data.forecast_data import FirstStep, ForecastReader
from credit_jax.data.opened_data import NamedData
from credit_jax.data.schedule import Task
from credit_jax.evaluation.comparison import attributes_of
from credit_jax.evaluation.opening import ScoreOptions
from credit_jax.evaluation.regions import REGIONS
from credit_jax.forecast import delivery
from credit_jax.forecast.archive import Archive, identity_of, software
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.forecast.members import (
    MemberNoise,
    OnlineScores,
    PreparedPerturbation,
    member_noise,
    members_of,
    online_scores,
)
from credit_jax.forecast.outputs import Outputs, outputs_of
from credit_jax.io.activity import activity
from credit_jax.io.errors import write_errors
from credit_jax.io.workers import ReadAhead, Workers
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.plan.forecast import ForecastPlan


@dataclass(frozen=True)
class CampaignTimes:
    """Durations of the parts of a campaign, in seconds."""

    # Steps on the devices, except the first one, which includes compilation; also those
    # before the start dates of perturbed members.
    unroll: float
    read: float  # initial states and forcing, concurrent with the others
    write: float  # copies to the host, and files
    total: float  # time from the end of the first step to the end

    @property
    def idle(self) -> float:
        """Fraction of the total in which the devices were idle."""
        return max(0.0, 1 - self.unroll / self.total) if self.total > 0 else 0.0


@dataclass(frozen=True)
class Summary:
    """Result of a campaign."""

    num_forecasts: int  # number of forecasts made
    num_done: int  # number of forecasts that were already done
    missing: dict[str, int]  # values that were not finite, by variable
    times: CampaignTimes
    # Reason why it ended before the last group; None if it is complete.
    stopped: str | None = None


@dataclass
class DeviceClock:
    """Adds up the time that the devices were busy; steps run one after the other."""

    busy: float = 0.0  # seconds, without the first step
    awaited: float = 0.0  # seconds for which copies to the host waited for the devices
    _first_end: float = 0.0
    _last_end: float = 0.0

    def wait(self, dispatched: float, result: Any) -> None:
        """Waits for the result of a step dispatched at a time of `perf_counter`."""
        jax.block_until_ready(result)
        now = time.perf_counter()
        if self._first_end:
            self.busy += now - max(dispatched, self._last_end)
        self._first_end, self._last_end = self._first_end or now, now

    def ready(self, result: Any) -> Any:
        """Returns a result when it is computed, and counts the time until then."""
        start = time.perf_counter()
        jax.block_until_ready(result)
        self.awaited += time.perf_counter() - start
        return result

    @contextmanager
    def spin_up(self) -> Iterator[None]:
        """Counts the time of steps before the start dates, but of the first ones."""
        # No other steps may run meanwhile, but the last ones that were started before.
        start = time.perf_counter()
        yield
        if self._first_end:
            start = max(start, self._last_end)
            self._last_end = time.perf_counter()
            self.busy += self._last_end - start

    @property
    def total(self) -> float:
        """Seconds since the end of the first step; 0 before it."""
        return time.perf_counter() - self._first_end if self._first_end else 0.0


# Steps whose input is read in advance, and steps on the devices.
NUM_AHEAD, NUM_IN_FLIGHT = 3, 2


@dataclass(frozen=True)
class Campaign:
    """Forecasts of a plan that are made and written."""

    plan: ForecastPlan
    step: ForecastStep  # of the plan, for `outputs`
    weights: Any  # of the model, after spectral norm
    outputs: Outputs  # the variables that are written
    store: delivery.ForecastStore
    archive: Archive  # records which are done
    groups: Sequence[Sequence[Task]]  # tasks that run together in one batch
    # Samples of a batch over all processes; smaller groups are padded with copies.
    size: int
    scores: OnlineScores | None = None  # that are computed with the forecasts
    num_writers: int = 4  # threads that write files
    # Files that may wait to be written; None is twice the threads.
    max_pending: int | None = None
    # Whether values that are not finite are written as missing and counted; otherwise
    # they are an error.
    fill_nan: bool = False
    # Called with the number of forecasts after each batch.
    progress: Callable[[int], None] = lambda done: None
    # Called before each batch but the first, by all processes together; returns the
    # reason to stop there, or None.
    stop: Callable[[], str | None] = lambda: None

    @cached_property
    def noise(self) -> MemberNoise | None:
        """Noise of the members of models that draw noise; None for other models."""
        return member_noise(self.plan.config.seed, self.plan.schedule, self.step.model)

    @cached_property
    def reader(self) -> ForecastReader:
        """Reader of initial states, with perturbations of members, and of forcing."""
        plan, outputs, weights = self.plan, self.outputs, self.weights
        if plan.schedule.num_members == 1:
            return plan.reader
        arguments = (outputs.latitude, outputs.longitude), self.step, weights
        run = plan, self.step.model, weights, outputs
        seed = plan.config.seed
        members = members_of(seed, plan.reader, *arguments, self.noise, run)
        perturb = plan.perturbation.bind(members)
        if plan.perturbation.runs_model:
            perturb = PreparedPerturbation(perturb)
        return replace(plan.reader, perturb=perturb)

    def run(self) -> Summary:
        """Makes the forecasts that are not done yet."""
        archive = self.archive
        if jax.process_index() == 0:
            with write_errors(archive.address, "choose another folder"):
                archive.create()
                self.store.create()
        wait_for_all("the store")
        # A process that has read other files than the first one ends here.
        archive.check((), resume=True)
        todo = [g for g in self.groups if not all(map(archive.done, g))]
        missing = [sum(not archive.done(task) for task in g) for g in todo]
        # Forecasts are marked as done only after all processes have chosen the groups.
        wait_for_all("groups of forecasts")
        share = delivery.Share(
            self.step.model.mesh, self.size, len(self.outputs.latitude)
        )
        batches = []
        for group in todo:
            # Every batch has the same size, so that there is one compiled step.
            full = [*group, *[group[-1]] * (self.size - len(group))]
            batches.append(_Batch(group, full, [full[i] for i in share.positions]))
        finished, stopped = list[delivery.Tasks](), None
        with self._threads(batches, share) as threads:
            for number, batch in enumerate(batches):
                # Not before the first batch: each start makes some forecasts.
                if number and (stopped := self.stop()):
                    break
                threads.perturb(batch)
                tasks = [
                    delivery.TaskProgress(archive, task, self.store.writer(task))
                    if index < len(batch.group)
                    and index in share.written
                    and not archive.done(task)
                    else None
                    for index, task in zip(share.positions, batch.mine, strict=True)
                ]
                results = _Results(self, batch, tasks, share, threads)
                with activity(f"forecasts {number + 1}/{len(batches)}"):
                    self._run(batch, threads.reader, results)
                finished.append(tasks)
                self.progress(sum(missing[: number + 1]))
        existing = sum(map(len, self.groups)) - sum(missing)
        bad = [task.missing for tasks in finished for task in tasks if task is not None]
        names = [variable.name for variable in self.outputs.variables]
        return Summary(
            sum(missing[: len(finished)]),
            existing,
            delivery.added_up(sum(bad, Counter()), names),
            threads.times,
            stopped,
        )

    def _threads(self, batches: Sequence[_Batch], share: delivery.Share) -> _Threads:
        """Starts the threads, which begin to read the input of the batches."""
        perturb = self.reader.perturb
        mine, steps = [batch.mine for batch in batches], self.plan.schedule.num_steps
        stream = self.reader.stream(mine, steps, share.mesh, share.ranks)
        references = None
        if self.scores is not None:
            references = self.scores.stream([batch.full for batch in batches])
        pending = self.max_pending or 2 * self.num_writers
        return _Threads(
            ReadAhead(stream, NUM_AHEAD),
            None if references is None else ReadAhead(references, NUM_AHEAD),
            Workers(1, NUM_IN_FLIGHT, "devices"),
            Workers(1, NUM_IN_FLIGHT, "host"),
            Workers(self.num_writers, pending, "write"),
            perturb if isinstance(perturb, PreparedPerturbation) else None,
        )

    def _run(self, batch: _Batch, inputs: Iterable[Any], results: _Results) -> None:
        """Starts all steps of a batch, and hands over their results."""
        schedule, inputs = self.plan.schedule, iter(inputs)
        first: FirstStep = next(inputs)
        if self.store.first_step == 0:
            results.take_initial(self.outputs.chosen(first.fields))
        start = 0.0

        def forcing() -> Iterator[Any]:
            nonlocal start
            # The last step feeds no other one, and reads no forcing.
            of_step: Any = {}
            for step in range(1, schedule.num_steps + 1):
                if step < schedule.num_steps:
                    of_step = next(inputs)
                start = time.perf_counter()
                yield of_step

        noise = None if self.noise is None else self.noise.of(batch.full)
        steps = self.step.steps(self.weights, first.arrays, forcing(), noise)
        for step in range(1, schedule.num_steps + 1):
            # The step returns before the devices have computed it; another thread
            # waits for the result, so that the next step can be started.
            with activity(f"forecast step {step}/{schedule.num_steps}"):
                outputs = next(steps)
                results.take(step, outputs, start, written=step in schedule.written)
        results.finish()


class _Batch(NamedTuple):
    """Forecasts that run together."""

    group: Sequence[Task]
    full: Sequence[Task]  # the tasks of all samples: the last one again where they lack
    mine: Sequence[Task]  # the tasks of the samples of this process


@dataclass(frozen=True)
class _Threads(AbstractContextManager[Any]):
    """The threads besides the one that starts the steps; leaving waits for them."""

    reader: ReadAhead  # input of the steps, in order
    # Reference fields of the scores, in order; None without scores.
    references: ReadAhead | None
    devices: Workers  # waits for steps, to time them
    host: Workers  # copies results to the host, in order
    files: Workers  # writes files
    prepared: PreparedPerturbation | None  # perturbations that need the model, or None
    clock: DeviceClock = field(default_factory=DeviceClock)

    def perturb(self, batch: _Batch) -> None:
        """Computes the perturbations of a batch, if they need the model."""
        # The reader waits for them before it reads the initial states.
        if self.prepared is not None:
            with self.clock.spin_up():
                self.prepared.prepare(batch.full, batch.mine)

    @property
    def times(self) -> CampaignTimes:
        """Durations of the parts of the campaign."""
        waits = self.clock.awaited + self.files.blocked
        write = self.host.seconds - waits + self.files.seconds
        read = self.reader.seconds - (self.prepared.waited if self.prepared else 0.0)
        return CampaignTimes(self.clock.busy, read, write, self.clock.total)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        workers = self.devices, self.host, self.files
        # In the order in which work passes from one to the next.
        try:
            for worker in workers if kind is None else ():
                worker.close()
        finally:
            for worker in workers:
                worker.cancel()
            if self.prepared is not None:
                self.prepared.close()
            self.reader.close()
            if self.references is not None:
                self.references.close()


@dataclass(frozen=True)
class _Results:
    """Takes the steps of a batch to scores and files, on the threads of a campaign."""

    campaign: Campaign
    batch: _Batch
    # The forecast of each sample of this process; None for copies, for forecasts that
    # are done, and for those that another process writes.
    tasks: delivery.Tasks
    share: delivery.Share
    threads: _Threads
    # Area sums of the group at each written step, if forecasts are scored.
    sums: list[dict[str, np.ndarray]] = field(default_factory=list)

    def take_initial(self, fields: Mapping[str, np.ndarray]) -> None:
        """Submits the initial states to be written."""
        counts = {k: (~np.isfinite(x)).sum(axis=(1, 2, 3)) for k, x in fields.items()}
        self.threads.host.submit(partial(self._write, 0, counts, fields))

    def take(self, step: int, outputs: Any, start: float, *, written: bool) -> None:
        """Submits a step, started at time `start`, to be timed, scored and written."""
        threads, scores, sums = self.threads, self.campaign.scores, None
        if scores is not None and threads.references is not None and written:
            measure, ready = scores.measure, threads.clock.ready
            sums = measure(outputs, next(threads.references))
            threads.host.submit(lambda: self.sums.append(measure.to_host(ready(sums))))
        threads.devices.submit(partial(threads.clock.wait, start, (outputs, sums)))
        if written:
            counts, full = self.share.non_finite(outputs), {}
            # Fields of a campaign that is only scored stay on the devices.
            if type(self.campaign.store) is not delivery.ForecastStore:
                full = self.share.with_all_rows(outputs)
            # The copies follow the step, while the next one runs.
            for array in jax.tree.leaves((counts, full)):
                array.copy_to_host_async()
            threads.host.submit(partial(self._deliver, step, counts, full))

    def finish(self) -> None:
        """Submits what follows the last step."""
        # `host` is one thread in order: sums are saved, and forecasts marked as done,
        # after all of their steps.
        if self.campaign.scores is not None:
            save = self.campaign.scores.save
            self.threads.host.submit(partial(save, self.batch.group, self.sums))
        self.threads.host.submit(self._close)

    def _close(self) -> None:
        """Writes what remains after the last step, then marks forecasts as done."""
        for task in filter(None, self.tasks):
            for job in task.writer.finish():
                self.threads.files.submit(task.job(job))
            task.close()

    def _deliver(self, step: int, counts: Any, full: Any) -> None:
        """Copies the fields of a step to the host, and passes them to the writers."""
        counts, full = self.threads.clock.ready((counts, full))
        positions = list(self.share.positions)
        counts = {key: np.asarray(x)[positions] for key, x in counts.items()}
        rows = self.share.num_rows
        fields = {key: delivery.on_host(x)[:, :, 0, :rows] for key, x in full.items()}
        self._write(step, counts, fields)

    def _write(
        self,
        step: int,
        counts: Mapping[str, np.ndarray],
        fields: Mapping[str, np.ndarray],
    ) -> None:
        """Passes a step of every forecast to its writer; `counts` are not finite."""
        schedule = self.campaign.plan.schedule
        for index, task in enumerate(self.tasks):
            if task is None:
                continue
            values = {key: array[index] for key, array in fields.items()}
            for key, number in ((k, int(x[index])) for k, x in counts.items()):
                if not number:
                    continue
                name = key.split("/")[-1]
                if not self.campaign.fill_nan:
                    raise delivery.NonFiniteForecastError(
                        f"{name} has {number} values that are NaN or infinite at step "
                        f"{step} (lead {schedule.lead(step)}) of the forecast from "
                        f"{str(schedule.starts[task.task.start])[:16]}, member "
                        f"{task.task.member}; --nan fill writes them as missing"
                    )
                task.missing[name] += number
                if key in values:
                    finite = np.isfinite(values[key])
                    values[key] = np.where(finite, values[key], np.float32(np.nan))
            for job in task.writer.add(step, values):
                self.threads.files.submit(task.job(job))


def score_campaign(
    plan: ForecastPlan,
    model: ParallelModel,
    weights: Any,
    folder: Path,
    *,
    options: ScoreOptions | None = None,
    batch: int = 1,  # per data-parallel rank, all members of a start date
    store: delivery.ForecastStore | None = None,
    attributes: Mapping[str, Any] | None = None,
    fill_nan: bool = False,
) -> xr.Dataset:
    """Makes and scores forecasts from all start dates of a plan that are not done."""
    schedule, outputs = plan.schedule, outputs_of(plan, model)
    size = batch * model.axes.num_data
    if options is None:
        training = NamedData.before(plan.config.preblocks, plan.config.data)
        options = ScoreOptions(plan.truth, training=training)
    scores = online_scores(options, REGIONS, schedule, model, outputs, size, folder)
    provenance = software()
    identity = identity_of(plan, model)
    archive = Archive(
        folder,
        schedule,
        identity,
        provenance,
        outputs.coordinates,
        plan.digests,
    )
    archive.check(schedule.tasks, resume=True)
    wait_for_all("the folder of scored forecasts")
    Campaign(
        plan,
        ForecastStep(model, plan.rollout, outputs.selection),
        weights,
        outputs,
        delivery.ForecastStore() if store is None else store,
        archive,
        schedule.groups(size),
        size,
        scores,
        num_writers=1,
        fill_nan=fill_nan,
    ).run()
    wait_for_all("the sums of scored forecasts")
    described = attributes_of(str(folder), scores.comparison, provenance)
    result = scores.scores({**described, **(attributes or {})})
    assert result is not None, "all start dates are done"
    return result
