"""Forecasts that are appended to an Icechunk repository, a commit for a start date."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.forecast.archive import Archive
from credit_jax.forecast.zarr_store import LEAD, TIME
from credit_jax.io.icechunk import (
    check_writable,
    committed,
    one_at_a_time,
    writable_repository,
)
from credit_jax.io.mirror import cache_folder
from credit_jax.plan.run_record import differences, line_of

_RECORD = "forecast"  # attribute of the group, with identity and digests


def folder_of(url: str, schedule: ForecastSchedule) -> Path:
    """The folder of forecasts that are not in the repository yet."""
    text = f"{url} {' '.join(map(str, schedule.starts))}"
    return cache_folder() / "repositories" / sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class RepositoryArchive(Archive):
    """The record of forecasts that a store has until they are in a repository."""

    url: str = ""
    store: Any = None  # the `ZarrStore` of the forecasts that are made

    @property
    def address(self) -> str:
        return self.url

    @cached_property
    def _repository(self) -> tuple[Any, str]:
        return writable_repository(self.url)

    @cached_property
    def _at_first(self) -> Any:
        """The group as the job found it; None if the repository had none."""
        return self._open(self._session())

    @cached_property
    def _appended(self) -> frozenset[int]:
        """Positions of the start dates that were in the repository at first."""
        group = self._at_first
        stored = () if group is None else group[TIME][:].tolist()
        return frozenset(n for n, time in enumerate(self._times) if time in stored)

    @cached_property
    def _times(self) -> list[int]:
        return self.store.coordinates()[TIME][0].tolist()

    def check(self, tasks: Iterable[Task], *, resume: bool) -> None:
        """Checks the repository, and that it can be written to."""
        tasks = [*tasks]
        if self._at_first is not None:
            self._compare(self._at_first)
        if not resume and any(task.start in self._appended for task in tasks):
            raise ValueError(
                f"--out: {self.url} holds some of these forecasts already; --resume "
                "makes the missing ones"
            )
        super().check((), resume=True)
        check_writable(self.url, self._repository[0])

    def done(self, task: Task) -> bool:
        return task.start in self._appended or super().done(task)

    def create(self) -> None:
        super().create()
        # A job may have ended before a commit.
        for start in range(len(self.schedule.starts)):
            self._commit(start)

    def mark(self, task: Task, missing: Mapping[str, int]) -> None:
        super().mark(task, missing)
        self._commit(task.start)

    def _commit(self, start: int) -> None:
        """Appends a start date if all members are done, and removes their files."""
        tasks = [Task(start, m) for m in range(self.schedule.num_members)]
        if not all(map(super().done, tasks)):
            return
        date = str(self.schedule.starts[start])[:16]
        with one_at_a_time(self.url):
            while self._append(session := self._session(), start):
                if committed(session, f"forecast from {date}"):
                    break
        for task in tasks:
            self._marker(task).unlink(missing_ok=True)
        for name in self._arrays:
            shutil.rmtree(self.store.path / name / "c" / str(start), ignore_errors=True)

    def _append(self, session: Any, start: int) -> bool:
        """Writes a start date after the last one, unless it is there."""
        group = self._open(session)
        if group is None:
            starts = self.schedule.starts[start : start + 1]
            one = replace(self.store, schedule=replace(self.schedule, starts=starts))
            group = one.layout(session.store)
            group.attrs[_RECORD] = json.dumps(self._record())
            number = 0
        else:
            self._compare(group)
            if self._times[start] in group[TIME][:].tolist():
                return False
            number = group[TIME].shape[0]
            group[TIME].append(np.array([self._times[start]]))
        for name, array in self._arrays.items():
            target = group[name]
            target.resize((number + 1, *target.shape[1:]))
            count = array.metadata.dimension_names.index(LEAD)
            for index in np.ndindex(array.shape[1 : count + 1]):
                target[(number, *index)] = array[(start, *index)]
        return True

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        """The arrays of the variables that are made, by name."""
        group = zarr.open_group(str(self.store.path), mode="r")
        return {v.name: group[v.name] for v in self.store.outputs.variables}

    def _session(self) -> Any:
        repository, branch = self._repository
        return repository.writable_session(branch)

    def _open(self, session: Any) -> Any:
        """The group of the forecasts in the repository; None if it has none."""
        with suppress(FileNotFoundError):
            return zarr.open_group(session.store, mode="r+")
        return None

    def _record(self) -> dict[str, Any]:
        identity = {k: v for k, v in self.identity.items() if k != "start dates"}
        return {"identity": identity, "digests": dict(self.digests)}

    def _compare(self, group: Any) -> None:
        """Refuses a repository that holds something else."""
        if _RECORD not in group.attrs:
            raise ValueError(
                f"--out: {self.url} holds other data than forecasts of credit_jax; "
                "give another repository or branch"
            )
        recorded = json.loads(group.attrs[_RECORD])
        current = json.loads(json.dumps(self._record()))
        pairs = chain(*(differences(recorded[key], current[key]) for key in current))
        other = [line_of(*each) for each in pairs]
        for name, (values, _) in self.store.coordinates().items():
            if name != TIME and not np.array_equal(group[name][...], values):
                other.append(name)
        if other:
            raise ValueError(
                f"--out: {self.url} holds other forecasts, which differ in "
                f"{', '.join(other)}; give another repository or branch"
            )
