"""The report on a config as a JSON document.

It is what `python -m credit_jax.check --json` prints; docs/checking.md describes it.
Its keys do not change within one `SCHEMA_VERSION`; keys may be added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from credit_jax.cli.check.report import CheckReport
from credit_jax.config.data import DataConfig, num_samples
from credit_jax.data import ChannelGroup
from credit_jax.models.model_def import parameter_count
from credit_jax.plan import RunPlan
from credit_jax.plan.memory import estimate_memory
from credit_jax.plan.roofline import StepBound, update_seconds
from credit_jax.training.curriculum import summary_of

SCHEMA_VERSION = 1
_KEY = re.compile(r"(?P<where>[\w.\[\]/-]+): (?P<message>.*)", re.DOTALL)


def document(report: CheckReport) -> dict[str, Any]:
    """Returns the report as JSON values; see docs/checking.md."""
    plan = report.plan
    return {
        "schema_version": SCHEMA_VERSION,
        "config": report.path,
        "kind": report.kind,
        "ok": not report.problems,
        "problems": [_problem(line, report) for line in report.problems],
        "notes": [*report.notes],
        "ignored": [{"key": k, "reason": why} for k, why in report.ignored.items()],
        "channels": None if report.schema is None else _channels(report),
        "further_inputs": None if plan is None else _further(plan),
        "data": None if report.data is None else _data(report.data),
        "model": None if plan is None else _model(plan),
        "mesh": None if plan is None else _mesh(plan),
        "memory": None if plan is None else _memory(plan),
        "curriculum": None if plan is None else _curriculum(plan, report.bound),
        "roofline": None if report.bound is None else report.bound.to_json(),
    }


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
        "sources": {name: source.dataset_type for name, source in data.source.items()},
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


def _curriculum(plan: RunPlan, bound: StepBound | None) -> list[dict[str, Any]]:
    """The stages of the run."""
    definition, axes, stages = plan.model.model_def, plan.model.axes, []
    for stage, length in zip(plan.config.stages, plan.stage_lengths, strict=True):
        memory = seconds = None
        if definition is not None and axes is not None:
            memory = estimate_memory(stage, definition, axes).total
        if bound is not None:
            seconds = update_seconds(bound, plan.config, stage)
        stages.append(
            {
                "settings": summary_of(stage),
                "forecast_len": stage.data.forecast_len,
                "updates": length.updates,
                "epochs": length.epochs,
                "bytes_a_device": memory,
                "update_seconds_at_least": seconds,
            }
        )
    return stages
