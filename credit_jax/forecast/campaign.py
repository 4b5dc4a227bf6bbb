"""Many forecasts, with reading, computing and writing in parallel.

One thread reads ahead, the calling one starts steps on the devices, one copies their
results to the host, and some write files. The number of steps in flight is limited, so
that the memory depends neither on the length nor on the number of the forecasts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from credit_jax.data.forecast_reader import FirstStep, ForecastReader
from credit_jax.data.schedule import Task
from credit_jax.forecast.archive import Archive
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.forecast.delivery import Delivery, TaskProgress, Tasks
from credit_jax.forecast.member_noise import MemberNoise, member_noise
from credit_jax.forecast.members import Changes, perturbed_reader
from credit_jax.forecast.online_scores import GroupScores, OnlineScores
from credit_jax.forecast.outputs import Outputs
from credit_jax.forecast.perturbation import PreparedPerturbation
from credit_jax.forecast.sharing import Share, added_up
from credit_jax.forecast.stores import NoStore, Store
from credit_jax.forecast.summary import DeviceClock, Summary, Times
from credit_jax.io.activity import activity
from credit_jax.io.workers import ReadAhead, Workers
from credit_jax.io.write_errors import write_errors
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.plan.forecast import ForecastPlan

# Steps whose input is read in advance, and steps on the devices.
NUM_AHEAD, NUM_IN_FLIGHT = 3, 2


@dataclass(frozen=True)
class Campaign:
    """Forecasts that are made and written.

    Attributes:
        step: the compiled step.
        weights: weights of the model, after spectral norm.
        reader: reader of initial states and forcing.
        store: store to which the forecasts are written.
        archive: records which are done.
        outputs: the variables that are written.
        groups: tasks that run together in one batch.
        size: samples of a group over all processes; smaller groups are padded with
            copies.
        num_steps: number of steps of a forecast.
        written: steps that are written.
        num_writers: threads that write files.
        max_pending: files that may wait to be written.
        fill_nan: whether values that are not finite are written as missing and counted;
            otherwise they are an error.
        progress: called with the number of forecasts after each group.
        scores: scores of the forecasts, computed with them; None computes none.
        noise: noise of the members of models that draw noise; None for other models.
        stop: called before each group but the first, by all processes together; returns
            the reason to stop there, or None.
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
    noise: MemberNoise | None = None
    stop: Callable[[], str | None] = lambda: None

    @classmethod
    def of_plan(
        cls,
        plan: ForecastPlan,
        model: ParallelModel,
        weights: Any,
        outputs: Outputs,
        store: Store,
        archive: Archive,
        groups: Sequence[Sequence[Task]],
        size: int,
        changes: Changes | None = None,
        **options: Any,
    ) -> Campaign:
        """The forecasts of a plan, with its step, perturbations and dates.

        Args:
            plan: plan, as returned by `plan_forecast`.
            model: model on its mesh.
            weights, outputs, store, archive, groups, size, options: attributes.
            changes: see `perturbed_reader`.
        """
        step = ForecastStep(model, plan.rollout, outputs.selection)
        noise = member_noise(plan.config.seed, plan.schedule, model)
        return cls(
            step,
            weights,
            perturbed_reader(plan, step, weights, outputs, noise, changes),
            store,
            archive,
            outputs,
            groups,
            size,
            plan.schedule.num_steps,
            plan.schedule.written,
            noise=noise,
            **options,
        )

    def run(self) -> Summary:
        """Makes the forecasts that are not done yet.

        Raises:
            NonFiniteForecastError: values are not finite, and are not to be filled.
            WriteError: something cannot be written.
            OSError, ValueError: something cannot be read, or the processes have read
                different files.
        """
        if jax.process_index() == 0:
            with write_errors(self.archive.folder, "choose another folder"):
                self.archive.create()
                self.store.create()
        wait_for_all("the store")
        # A process that has read other files than the first one ends here.
        self.archive.check((), resume=True)
        todo = [g for g in self.groups if not all(map(self.archive.done, g))]
        missing = [sum(not self.archive.done(task) for task in g) for g in todo]
        # Forecasts are marked as done only after all processes have chosen the groups.
        wait_for_all("groups of forecasts")
        with _Threads.of(self, Share(self.step.model.mesh, self.size), todo) as threads:
            finished, stopped = self._make(todo, missing, threads)
        existing = sum(map(len, self.groups)) - sum(missing)
        done = sum(missing[: len(finished)])
        return Summary(
            done, existing, self._not_finite(finished), threads.times, stopped
        )

    def _make(
        self, todo: Sequence[Sequence[Task]], missing: list[int], threads: _Threads
    ) -> tuple[list[Tasks], str | None]:
        """Runs group after group; returns those that ran, and why it stopped early."""
        finished: list[Tasks] = []
        for number, group in enumerate(todo):
            # Not before the first group: each start makes some forecasts.
            if number and (stopped := self.stop()):
                return finished, stopped
            threads.prepare(number)
            running = _Group(self, threads, group, threads.full[number])
            with activity(f"forecasts {number + 1}/{len(todo)}"):
                running.run()
            finished.append(running.tasks)
            self.progress(sum(missing[: number + 1]))
        return finished, None

    def _not_finite(self, finished: Sequence[Tasks]) -> dict[str, int]:
        """Values that were not finite in the forecasts of all processes."""
        missing = [
            task.missing for tasks in finished for task in tasks if task is not None
        ]
        names = [variable.name for variable in self.outputs.variables]
        return added_up(sum(missing, Counter()), names)

    def task_progress(self, task: Task) -> TaskProgress | None:
        """Progress of a forecast; None if it is done."""
        if self.archive.done(task):
            return None
        return TaskProgress(self.archive, task, self.store.writer(task))


@dataclass(frozen=True)
class _Threads:
    """The threads besides the one that starts the steps.

    Leaving the context waits for all of them, or cancels pending work after an error.

    Attributes:
        share: samples of this process.
        full: groups, padded with copies.
        mine: tasks of this process in each group.
        prepared: perturbations that need the model, or None.
        reader: input of the steps, in order.
        references: reference fields of the scores, in order; None without scores.
        devices: waits for steps, to time them.
        host: copies results to the host, in order.
        files: writes files.
        delivery: passes results to `files`.
        clock: clock of the devices.
    """

    share: Share
    full: Sequence[Sequence[Task]]
    mine: Sequence[Sequence[Task]]
    prepared: PreparedPerturbation | None
    reader: ReadAhead
    references: ReadAhead | None
    devices: Workers
    host: Workers
    files: Workers
    delivery: Delivery
    clock: DeviceClock = field(default_factory=DeviceClock)

    @classmethod
    def of(
        cls, campaign: Campaign, share: Share, todo: Sequence[Sequence[Task]]
    ) -> _Threads:
        """Starts the threads, which begin to read the input of the groups."""
        reader, scores = campaign.reader, campaign.scores
        # Every group has the same size, so that there is one compiled step.
        full = [[*g, *[g[-1]] * (campaign.size - len(g))] for g in todo]
        mine = [[g[place] for place in share.positions] for g in full]
        stream = reader.stream(mine, campaign.num_steps, share.mesh, share.ranks)
        pending = campaign.max_pending or 2 * campaign.num_writers
        files = Workers(campaign.num_writers, pending, "write")
        perturb = reader.perturb
        return cls(
            share,
            full,
            mine,
            perturb if isinstance(perturb, PreparedPerturbation) else None,
            ReadAhead(stream, NUM_AHEAD),
            None if scores is None else ReadAhead(scores.stream(full), NUM_AHEAD),
            Workers(1, NUM_IN_FLIGHT, "devices"),
            Workers(1, NUM_IN_FLIGHT, "host"),
            files,
            Delivery(files, reader.schedule, campaign.fill_nan),
        )

    def prepare(self, number: int) -> None:
        """Computes the perturbations of a group, if they need the model."""
        if self.prepared is not None:
            with self.clock.spin_up():
                self.prepared.prepare(self.full[number], self.mine[number])

    @property
    def times(self) -> Times:
        """Durations of the parts of the campaign."""
        waits = self.clock.awaited + self.files.blocked
        write = self.host.seconds - waits + self.files.seconds
        read = self.reader.seconds - (self.prepared.waited if self.prepared else 0.0)
        return Times(self.clock.busy, read, write, self.clock.total)

    def __enter__(self) -> _Threads:
        return self

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


class _Group:
    """Forecasts that run together in one batch.

    Args:
        campaign: the campaign they belong to.
        threads: threads of the campaign.
        group: the tasks, without padding.
        full: the tasks, padded with copies.
    """

    def __init__(
        self,
        campaign: Campaign,
        threads: _Threads,
        group: Sequence[Task],
        full: Sequence[Task],
    ) -> None:
        share, scores = threads.share, campaign.scores
        self.campaign, self.threads = campaign, threads
        self.noise = campaign.noise.of(full) if campaign.noise else None
        self.scored: GroupScores | None = None
        if scores is not None and threads.references is not None:
            self.scored = GroupScores(scores, threads.references, group)
        self.tasks: Tasks = [
            campaign.task_progress(group[place])
            if place < len(group) and place in share.written
            else None
            for place in share.positions
        ]

    def run(self) -> None:
        """Starts all steps, and submits their results to be written and scored."""
        campaign, threads = self.campaign, self.threads
        first: FirstStep = next(threads.reader)
        state, constants = campaign.step.start(first.arrays)
        if campaign.store.first_step == 0:
            fields = self._initial(first.fields)
            threads.host.submit(
                partial(threads.delivery.deliver, self.tasks, 0, fields)
            )
        # The last step feeds no other one, and reads no forcing.
        forcing: Any = {}
        for step in range(1, campaign.num_steps + 1):
            if step < campaign.num_steps:
                forcing = next(threads.reader)
            # The step returns before the devices have computed it; another thread
            # waits for the result, so that the next step can be started.
            start = time.perf_counter()
            noise = None if self.noise is None else self.noise.fold_in(step)
            with activity(f"forecast step {step}/{campaign.num_steps}"):
                state, outputs = campaign.step(
                    campaign.weights, state, constants, forcing, noise
                )
                self._hand_over(step, outputs, start)
        # `host` is one thread in order: sums are saved, and forecasts marked as done,
        # after all of their steps.
        if self.scored is not None:
            threads.host.submit(self.scored.save)
        threads.host.submit(partial(threads.delivery.finish, self.tasks))

    def _hand_over(self, step: int, outputs: Any, start: float) -> None:
        """Submits a step, started at time `start`, to be scored and written."""
        threads, written = self.threads, step in self.campaign.written
        sums = None
        if self.scored is not None and written:
            sums = self.scored.start(outputs)
            threads.host.submit(partial(self._score, step, sums))
        threads.devices.submit(partial(threads.clock.wait, start, (outputs, sums)))
        if written and not isinstance(self.campaign.store, NoStore):
            whole = threads.share.with_whole_rows(outputs)
            threads.host.submit(partial(self._deliver, step, whole))

    def _deliver(self, step: int, whole: Any) -> None:
        """Copies the fields of a step to the host, and passes them to the writers."""
        rows = len(self.campaign.outputs.latitude)
        outputs = self.threads.share.on_host(self.threads.clock.ready(whole))
        # Without padding rows: (batch, level, lat, lon).
        fields = {key: x[:, :, 0, :rows] for key, x in outputs.items()}
        self.threads.delivery.deliver(self.tasks, step, fields)

    def _score(self, step: int, sums: Any) -> None:
        """Copies the sums of a step; without a store also counts non-finite values."""
        assert self.scored is not None
        counts = self.scored.take(self.threads.clock.ready(sums))
        if isinstance(self.campaign.store, NoStore):
            # A copy that pads the group has no count, and no task.
            group_counts = [
                {} if task is None else counts[place]
                for task, place in zip(
                    self.tasks, self.threads.share.positions, strict=True
                )
            ]
            self.threads.delivery.count(self.tasks, step, group_counts)

    def _initial(self, fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The variables of the initial state, (batch, level, lat, lon)."""
        return {
            key: fields[key] if levels is None else fields[key][:, list(levels)]
            for key, levels in self.campaign.outputs.selection.items()
            if key in fields
        }
