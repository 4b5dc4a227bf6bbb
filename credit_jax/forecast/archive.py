"""The record of the forecasts in a folder: their identity, and which are done."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from credit_jax.config.data import DateRange, raw_ranges
from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.evaluation.opening import holds_forecasts
from credit_jax.io.atomic import new_file
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.named_fields.coordinates import indices_of
from credit_jax.plan.forecast import ForecastPlan
from credit_jax.plan.run_record import differences, line_of

RECORD, DONE = "forecast.json", "done"
# Of the provenance: the date ranges of the training of the weights.
TRAINING_DATES = "training_dates"
# Keys of the data section that training alone reads.
_OF_TRAINING = (
    "forecast_len",
    "backprop_on_timestep",
    "data_clamp",
    "on_bad_sample",
    "on_outlier",
)
# Keys of `inference.output` that determine what is written, and what is scored.
_WRITTEN = {
    "netcdf": ("output_interval", "variables", "metadata", "group_by", "encoding"),
    "zarr": ("output_interval", "variables", "metadata"),
    "none": ("output_interval", "variables"),
}
_PACKAGES = ("credit-jax", "jax", "numpy", "xarray", "zarr")


@dataclass(frozen=True)
class Archive:
    """The record of the forecasts in a folder."""

    folder: Path
    schedule: ForecastSchedule
    identity: Mapping[str, Any]  # everything that determines their values, by name
    provenance: Mapping[str, Any]  # origin of the forecasts
    # Name of a dim -> values of the coordinates of the fields.
    coordinates: Mapping[str, np.ndarray] = field(default_factory=dict)
    # SHA-256 of the files that determine their values besides the data and the weights,
    # by dotted key.
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return str(self.folder)

    def check(self, tasks: Iterable[Task], *, resume: bool) -> None:
        """Checks the folder against what is to be written to it."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"--out: {self.folder} is a file; give a folder")
        path = self.folder / RECORD
        if not path.exists():
            if holds_forecasts(self.folder):
                raise ValueError(
                    f"--out: {self.folder} holds forecasts of unknown origin (it has "
                    f"no {RECORD}); give another folder"
                )
            return
        content = _content(path)
        recorded = content["identity"]
        current = json.loads(json.dumps(dict(self.identity)))
        other = [line_of(*each) for each in differences(recorded, current)]
        if other:
            raise ValueError(
                f"--out: {self.folder} holds other forecasts, which differ in "
                f"{', '.join(other)}; give another folder"
            )
        recorded = content["coordinates"]
        for name in recorded.keys() & self.coordinates.keys():
            both = self.coordinates[name], recorded[name]
            current, reference = map(np.asarray, both)
            kind = name if name in ("latitude", "longitude") else "level"
            origin = f"--out: {path}", "this run"
            if current.ndim == reference.ndim == 1:
                other = indices_of(current, reference, kind, *origin) is not None
            else:
                other = not np.array_equal(current, reference)
            if other:
                raise ValueError(
                    f"{origin[0]}: its forecasts have the {name}s {_ends(reference)}, "
                    f"this run {_ends(current)}, in another order; give another folder"
                )
        recorded = content["digests"]
        of_keys = self.digests.items()
        if changed := [k for k, x in of_keys if recorded.get(k, x) != x]:
            raise ValueError(
                f"--out: {self.folder} holds forecasts that were made with other "
                f"contents of the files of {', '.join(changed)}: they were changed "
                "since; bring back the former ones, or give another folder"
            )
        if not resume and any(self.done(task) for task in tasks):
            raise ValueError(
                f"--out: {self.folder} holds some of these forecasts already; --resume "
                "makes the missing ones, or give another folder"
            )

    def create(self) -> None:
        """Writes the record, unless it exists."""
        path = self.folder / RECORD
        if path.exists():
            return
        content = {
            "identity": self.identity,
            "provenance": self.provenance,
            "coordinates": {
                k: np.asarray(v).tolist() for k, v in self.coordinates.items()
            },
            "digests": self.digests,
        }
        with new_file(path) as partial:
            partial.write_text(json.dumps(content, indent=1), encoding="utf-8")

    def done(self, task: Task) -> bool:
        return self._marker(task).exists()

    def mark(self, task: Task, missing: Mapping[str, int]) -> None:
        """Records that a forecast is written, and its values that were not finite."""
        with new_file(self._marker(task)) as partial:
            partial.write_text(json.dumps({"missing": missing}), encoding="utf-8")

    def _marker(self, task: Task) -> Path:
        start = str(self.schedule.starts[task.start])
        return self.folder / DONE / marker_name(start, task.member)


def marker_name(start: str, member: int) -> str:
    """Name of the file that marks a forecast as done."""
    return f"{start[:16].replace(':', '')}_{member:03d}.json"


@dataclass(frozen=True)
class ForecastRecord:
    """The contents of the record of a folder."""

    # The config of the forecasts as nested mappings; None if not recorded.
    config: Mapping[str, Any] | None
    provenance: Mapping[str, Any]  # origin of the forecasts
    unfinished: int = 0  # forecasts that are not done
    total: int = 0  # all forecasts

    @property
    def training_dates(self) -> tuple[DateRange, ...]:
        """Date ranges that the weights were trained on; () if unknown."""
        pairs = self.provenance.get(TRAINING_DATES) or raw_ranges(self.config or {})
        return tuple((first, last) for first, last in pairs)


def record_beside(origin: str) -> ForecastRecord:
    """The record of the folder of forecasts, or of that of their store."""
    folder = Path(origin)
    return read_record(folder.parent if folder.suffix == ".zarr" else folder)


def read_record(folder: Path) -> ForecastRecord:
    """The record of a folder of forecasts; an empty one if there is none."""
    path = folder / RECORD
    if not path.is_file():
        return ForecastRecord(None, {})
    content = _content(path)
    identity, provenance = content["identity"], dict(content["provenance"])
    names = [
        marker_name(start, member)
        for start in identity["start dates"]
        for member in range(identity["members"])
    ]
    missing = [name for name in names if not (folder / DONE / name).exists()]
    config = provenance.pop("config", None)
    return ForecastRecord(config, provenance, len(missing), len(names))


def _content(path: Path) -> dict[str, Any]:
    """What a record holds."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        sections = {name: dict(content[name]) for name in ("identity", "provenance")}
        # Records of earlier versions have none.
        later = ("coordinates", "digests")
        return {**sections, **{name: dict(content.get(name) or {}) for name in later}}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no record of forecasts ({error}); give another folder, or "
            "remove this one and make its forecasts again"
        ) from error


def _ends(values: np.ndarray) -> str:
    flat = values.ravel()
    return f"from {flat[0]:g} to {flat[-1]:g}" if flat.size else "of no value"


def software() -> dict[str, str]:
    """Versions of packages, the commit of this one, and the command line."""
    versions = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    commit = "unknown"
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": True}
    with suppress(OSError, subprocess.CalledProcessError):
        run = subprocess.run(command, cwd=Path(__file__).parent, **options)
        commit = run.stdout.strip()
    return {**versions, "commit": commit, "command": " ".join(sys.argv)}


def identity_of(
    plan: ForecastPlan, model: ParallelModel, form: str = "none"
) -> dict[str, Any]:
    """Returns what determines the values of the forecasts of a plan, by name."""
    sections, schedule = plan.sections(), plan.schedule
    # Neither weights nor keys that change no value, so that a campaign goes on with
    # others.
    data = {k: v for k, v in sections["data"].items() if k not in _OF_TRAINING}
    identity = {**sections, "data": data}
    if schedule.num_members > 1:
        identity["perturbation"] = plan.perturbation.identity()
    elif not model.model_def.draws_noise:
        del identity["seed"]
    output = plan.inference.output.model_dump(mode="json")
    return {
        **identity,
        "start dates": [str(time) for time in schedule.starts],
        "steps": schedule.num_steps,
        "members": schedule.num_members,
        "output": {key: output[key] for key in _WRITTEN[form]},
    }
