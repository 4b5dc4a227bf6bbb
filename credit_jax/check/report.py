"""The report on a config: channels, ignored keys, problems, memory.

The document is what `python -m credit_jax.check --json` prints; docs/checking.md
describes it. Its keys do not change within one `SCHEMA_VERSION`; keys may be added.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from credit_jax.check.memory import estimate_memory
from credit_jax.check.rehearsal import rehearse
from credit_jax.check.roofline import StepBound, step_bound
from credit_jax.config import Config
from credit_jax.config.base import ConfigError, ConfigWarning, parse
from credit_jax.config.data import DataConfig, num_samples
from credit_jax.config.load import apply_overrides, build_config, is_gen1
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data import ChannelSchema
from credit_jax.data.channels import ChannelGroup
from credit_jax.demo.dataset import expected_files
from credit_jax.models.model_def import parameter_count
from credit_jax.plan import RunPlan, plan_run
from credit_jax.plan.channels import schema_of

SCHEMA_VERSION = 1
_KEY = re.compile(r"(?P<where>[\w.\[\]/-]+): (?P<message>.*)", re.DOTALL)
Made = TypeVar("Made")


@dataclass(frozen=True)
class CheckReport:
    """The result of checking one config.

    Attributes:
        path: path of the file.
        kind: "gen2", "gen1", or None if the file is neither.
        problems: errors that prevent a run from starting, one line each.
        notes: information for the user, one line each.
        ignored: dotted key -> reason why it has no effect.
        data: the validated data section; None if it does not parse.
        schema: the channels; None if the data section does not parse.
        plan: plan of the run; None if the config does not parse.
        bound: lower bound of the time of a step; None if no accelerator was named, or
            there are problems.
    """

    path: str
    kind: str | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    ignored: Mapping[str, str]
    data: DataConfig | None = None
    schema: ChannelSchema | None = None
    plan: RunPlan | None = None
    bound: StepBound | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values; see docs/checking.md."""
        plan = self.plan
        return {
            "schema_version": SCHEMA_VERSION,
            "config": self.path,
            "kind": self.kind,
            "ok": not self.problems,
            "problems": [_problem(line, self) for line in self.problems],
            "notes": [*self.notes],
            "ignored": [{"key": k, "reason": why} for k, why in self.ignored.items()],
            "channels": None if self.schema is None else _channels(self),
            "further_inputs": None if plan is None else _further(plan),
            "data": None if self.data is None else _data(self.data),
            "model": None if plan is None else _model(plan),
            "mesh": None if plan is None else _mesh(plan),
            "memory": None if plan is None else _memory(plan),
            "roofline": None if self.bound is None else self.bound.to_json(),
        }


def check_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    num_devices: int | None = None,
    with_data: bool = True,
    device: str | None = None,
) -> CheckReport:
    """Reads a config and plans its run; errors of the user become problems.

    Args:
        path: path of the YAML file.
        overrides: strings such as "trainer.epochs=3".
        num_devices: see `plan_run`.
        with_data: whether to find the data files and open them.
        device: accelerator, a key of `roofline.DEVICES`, for which to compute a lower
            bound of the time of a step; None computes none.
    """
    ignored: dict[str, str] = {}
    notes: list[str] = []
    try:
        mapping = apply_overrides(read_yaml(path), overrides)
    except (OSError, ValueError) as error:
        return CheckReport(str(path), None, _lines(error), (), {})
    if is_gen1(mapping):
        return CheckReport(str(path), "gen1", (_convert(path),), (), {})
    kind = "gen2" if isinstance(_section(mapping, "data").get("source"), dict) else None
    try:
        config = _heard(lambda: build_config(mapping, source=str(path)), ignored, notes)
    except ValueError as error:
        data = _data_alone(mapping)
        levels = _section(mapping, "model").get("levels")
        levels = levels if isinstance(levels, int) and levels > 0 else 1
        schema = data and schema_of(data, SimpleNamespace(levels=levels))
        found = _lines(error)
        return CheckReport(str(path), kind, found, tuple(notes), ignored, data, schema)
    plan = _heard(lambda: _plan(config, num_devices, with_data), ignored, notes)
    problems = plan.problems
    if not problems:
        problems = _heard(lambda: tuple(rehearse(plan)), ignored, notes)
    try:
        _heard(lambda: config.inference, ignored, notes)
    except ValueError as error:
        notes += [f"{line} (training does not read it)" for line in _lines(error)]
    every = tuple(dict.fromkeys((*plan.notes, *notes)))
    data, schema = config.data, plan.schema
    bound = _bound(plan, device)
    return CheckReport(
        str(path), kind, problems, every, ignored, data, schema, plan, bound
    )


def _bound(plan: RunPlan, device: str | None) -> StepBound | None:
    """Lower bound of the time of a step; None without a device or a valid plan."""
    model_def, axes = plan.model.model_def, plan.model.axes
    if device is None or model_def is None or axes is None or plan.problems:
        return None
    return step_bound(device, plan.config, model_def, axes)


def _plan(config: Config, num_devices: int | None, with_data: bool) -> RunPlan:
    return plan_run(
        config,
        num_devices=num_devices,
        with_data=with_data,
        expected_files=expected_files(config.demo) if config.demo else (),
    )


def _heard(make: Callable[[], Made], ignored: dict[str, str], notes: list[str]) -> Made:
    """Calls `make`, and adds its warnings to `ignored` and `notes`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        made = make()
    for warning in caught:
        if isinstance(warning.message, ConfigWarning):
            ignored |= warning.message.ignored
        else:
            notes.append(str(warning.message))
    return made


def _section(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    own = mapping.get(key)
    return own if isinstance(own, Mapping) else {}


def _data_alone(mapping: Mapping[str, Any]) -> DataConfig | None:
    """Parses the data section alone, for a config that does not parse as a whole."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            return parse(DataConfig, mapping["data"], "data")
        except (KeyError, ValueError):
            return None


def _lines(error: Exception) -> tuple[str, ...]:
    return error.problems if isinstance(error, ConfigError) else (str(error),)


def _convert(path: str | Path) -> str:
    new = Path(path).with_suffix(".gen2.yml")
    return (
        f"data: has flat variables, as CREDIT's generation 1; convert the file first: "
        f"credit-jax config --to jax {path} --out {new}"
    )


def _problem(line: str, report: CheckReport) -> dict[str, str | None]:
    """Splits a line into where, message and fix, which follows the last semicolon."""
    match = _KEY.fullmatch(line)
    where, message = (match["where"], match["message"]) if match else (None, line)
    if report.kind == "gen1":
        message, _, fix = message.partition("; ")
    else:
        message, _, fix = message.rpartition("; ")
    return {"where": where, "message": message or fix, "fix": fix if message else None}


def _further(plan: RunPlan) -> dict[str, Any]:
    """Inputs of the model other than x: channels of fields, times of vectors."""
    data = plan.config.data
    fields = {
        name: [*_each_channel(schema.input, _level_values(data))]
        for name, schema in plan.further_schemas.items()
    }
    return fields | {name: [*which] for name, which in data.time_encoding.items()}


def _level_values(data: DataConfig) -> dict[str, Sequence[float] | None]:
    """Levels of each source; None if only its files define them."""
    return {name: source.level_values for name, source in data.source.items()}


def _channels(report: CheckReport) -> dict[str, list[dict[str, Any]]]:
    schema = report.schema
    assert schema is not None, "asked for by the caller"
    values = {} if report.data is None else _level_values(report.data)
    return {
        "input": [*_each_channel(schema.input, values)],
        "target": [*_each_channel(schema.target, values)],
    }


def _each_channel(
    groups: Sequence[ChannelGroup], levels: Mapping[str, Sequence[float] | None]
) -> Iterator[dict[str, Any]]:
    number = 0
    for group in groups:
        known = levels.get(group.source) or ()
        deep = group.var_key.split("/")[2] == "3d"
        for index in range(group.n_levels):
            value = known[index] if deep and len(known) == group.n_levels else None
            yield {
                "channel": number,
                "variable": group.variable,
                "source": group.source,
                "field_type": group.field_type,
                "level": index + 1 if deep else None,
                "level_value": value,
            }
            number += 1


def _data(data: DataConfig) -> dict[str, Any]:
    return {
        "sources": {name: own.dataset_type for name, own in data.source.items()},
        "samples": num_samples(data),
        "timestep": str(data.timestep),
        "history_len": data.history_len,
        "forecast_len": data.forecast_len,
    }


def _model(plan: RunPlan) -> dict[str, Any]:
    definition = plan.model.model_def
    active = None if definition is None else definition.num_active_parameters
    return {
        "type": plan.config.model["type"],
        "grid": None if plan.model.grid is None else list(plan.model.grid),
        "parameters": None if definition is None else definition.num_parameters,
        "active_parameters": active,
        "parts": None if definition is None else parameter_count(definition),
    }


def _mesh(plan: RunPlan) -> dict[str, Any] | None:
    axes = plan.model.axes
    if axes is None:
        return None
    return {
        "devices": plan.num_devices,
        "data_parallel": axes.num_data,
        "parameter_shards": axes.num_shard,
        "expert": axes.num_expert,
        "tensor": axes.num_tensor,
        "domain": axes.num_domain,
    }


def _memory(plan: RunPlan) -> dict[str, Any] | None:
    definition, axes = plan.model.model_def, plan.model.axes
    if definition is None or axes is None:
        return None
    memory = estimate_memory(plan.config, definition, axes)
    return {"bytes_a_device": memory.total, "parts": memory.parts}
