"""Check a run without training: `python -m credit_jax.check --config FILE`.

The report is one document of JSON values (docs/checking.md), which the tables show as
it is. Its keys do not change within one `SCHEMA_VERSION`; keys may be added.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from credit_jax.cli.commands import FAILED, OK, ConfigOptions, option, print_line
from credit_jax.config import ConfigError, apply_overrides, build_config, parse
from credit_jax.config.base import ConfigWarning, as_problems
from credit_jax.config.data import DataConfig, num_samples
from credit_jax.config.load import GEN1, for_forecasts, forecasts_alone, is_gen1
from credit_jax.config.messages import counted, printable
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.data.perturbations import parse_perturbation
from credit_jax.models.model_def import parameter_count
from credit_jax.parallel.mesh.devices import free_memory
from credit_jax.plan import RunPlan, plan_run
from credit_jax.plan.estimates import (
    DEVICES,
    StepBound,
    estimate_memory,
    local_points,
    memory_problems,
    step_bound,
    update_seconds,
)
from credit_jax.training.display import print_table
from credit_jax.training.rehearsal import rehearse
from credit_jax.training.setup import summary_of

SCHEMA_VERSION = 1
_KEY = re.compile(r"(?P<key>[\w.\[\]/-]+): (?P<message>.*)", re.DOTALL)
GIB, MIB = 2**30, 2**20


class Check(ConfigOptions):
    """Report channels, geometry, parameters and memory of a run, without training."""

    example = "--config configs/demo.yaml --devices 8"

    devices: int | None = option("number of devices to look at", None)
    device: str | None = option(
        "state the least time of a step on this accelerator (docs/checking.md)",
        None,
        choices=DEVICES,
    )
    files: bool = option("do not look for the data files", True, alias="data")
    as_json: bool = option(
        "print one JSON document instead of tables (docs/checking.md)",
        False,
        alias="json",
    )

    def run(self) -> int:
        """Prints the plan of a config and its problems."""
        report = check_config(
            self.config,
            self.set,
            num_devices=self.devices,
            with_data=self.files,
            device=self.device,
        )
        document = report.document()
        if self.as_json:
            print(json.dumps(document, indent=1))
            return FAILED if report.problems else OK
        for name in ("channels", "further_inputs", "data", *_OF_PLAN):
            for table in _tables(name.replace("_", " ").capitalize(), document[name]):
                print_table(table)
        for key, why in report.ignored.items():
            print_line(f"ignored: {key}: {why}", "yellow")
        for note in report.notes:
            print_line(f"note: {note}", "yellow")
        if report.bound is not None:
            print_line(report.bound.explanation)
        if report.problems:
            print_line(f"{counted(len(report.problems), 'problem')}:", "bold red")
            for problem in report.problems:
                print_line(f"  {problem}", "red")
            return FAILED
        verdict = "OK: this run can start."
        if not report.trains:
            verdict = (
                "OK so far: for forecasts, which need neither loss nor trainer; their "
                "data are looked for by `forecast`, from its start dates."
            )
        elif not self.files:
            verdict = "OK so far: data and other files have not been looked at."
        print_line(verdict, "bold green")
        return OK


main = Check.main


@dataclass
class CheckReport:
    """The result of checking one config."""

    path: str  # path of the file
    kind: str | None = None  # "gen2", "gen1", or None if the file is neither
    # Errors that prevent a run from starting, one line each.
    problems: list[str] = field(default_factory=list)
    # Information for the user, one line each.
    notes: list[str] = field(default_factory=list)
    # Dotted key -> reason why it has no effect.
    ignored: dict[str, str] = field(default_factory=dict)
    # The validated data section; None if it does not parse.
    data: DataConfig | None = None
    # The channels; None if the data section does not parse.
    schema: ChannelSchema | None = None
    plan: RunPlan | None = None  # plan of the run; None if it has problems
    # Lower bound of the time of a step; None if no accelerator was named, or there are
    # problems.
    bound: StepBound | None = None
    # Whether the config has a section to train with; without one it is checked for
    # forecasts, which need none.
    trains: bool = True

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Ends its block at an error, a problem; takes the warnings of the block."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                with as_problems():
                    yield
            except ConfigError as error:
                self.problems += error.problems
        for warning in caught:
            if isinstance(warning.message, ConfigWarning):
                self.ignored |= warning.message.ignored
            else:
                self.notes.append(str(warning.message))

    def document(self) -> dict[str, Any]:
        """Returns the report as JSON values; see docs/checking.md."""
        data, schema, plan = self.data, self.schema, self.plan
        sources = {} if data is None else data.source
        levels = {name: source.level_values for name, source in sources.items()}
        parts = {} if plan is None else _document_of(plan, levels, self.bound)
        return {
            "schema_version": SCHEMA_VERSION,
            "config": self.path,
            "kind": self.kind,
            "ok": not self.problems,
            "problems": [self._split(line) for line in self.problems],
            "notes": self.notes,
            "ignored": [{"key": k, "reason": why} for k, why in self.ignored.items()],
            "channels": schema
            and {
                "input": [*_each_channel(schema.input, levels)],
                "target": [*_each_channel(schema.target, levels)],
            },
            "further_inputs": parts.get("further_inputs"),
            "data": data
            and {
                "sources": {name: s.dataset_type for name, s in sources.items()},
                "samples": num_samples(data),
                "timestep": str(data.timestep),
                "history_len": data.history_len,
                "forecast_len": data.forecast_len,
            },
            **{name: parts.get(name) for name in _OF_PLAN},
            "roofline": (bound := self.bound)
            and {
                "device": bound.device,
                "seconds_at_least": bound.seconds,
                **asdict(bound),
            },
        }

    def _split(self, line: str) -> dict[str, str | None]:
        """A line as where, message and fix, which follows the last semicolon."""
        match = _KEY.fullmatch(line)
        key, message = (match["key"], match["message"]) if match else (None, line)
        if self.kind == "gen1":
            message, _, fix = message.partition("; ")
        else:
            message, _, fix = message.rpartition("; ")
        fixed = fix if message else None
        return {"where": key, "message": message or fix, "fix": fixed}


def check_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    num_devices: int | None = None,
    with_data: bool = True,
    device: str | None = None,  # key of `roofline.DEVICES`, for a bound of times
) -> CheckReport:
    """Reads a config and plans its run; errors of the user become problems."""
    report, config = CheckReport(str(path)), None
    with report.hearing():
        mapping = apply_overrides(read_yaml(path), overrides)
        if is_gen1(mapping):
            report.kind, new = "gen1", Path(path).with_suffix(".gen2.yml")
            raise ConfigError([GEN1.format(path, new)])
        data = mapping.get("data")
        if isinstance(data, Mapping) and isinstance(data.get("source"), dict):
            report.kind = "gen2"
        report.trains = not forecasts_alone(mapping)
        if not report.trains:
            mapping, with_data = for_forecasts(mapping), False
        report.data, report.schema = _channels_alone(mapping)
        config = build_config(mapping, source=str(path), training=report.trains)
    if config is None:
        return report
    with report.hearing():
        plan = plan_run(
            config,
            num_devices=num_devices,
            with_data=with_data,
            expected_files=config.demo.files if config.demo else [],
        )
        report.data, report.schema = config.data, plan.schema
        report.notes += plan.notes
        report.plan = plan
        if report.trains:
            report.problems += rehearse(plan)
            if device is not None and not report.problems:
                model = plan.model
                report.bound = step_bound(device, config, model.model_def, model.axes)
            # Without the name of a device its memory is that of the machine, where the
            # data are looked for.
            limit = None
            if device is not None:
                limit = DEVICES[device].memory, DEVICES[device].name
            elif with_data:
                limit = free_memory(plan.num_devices)
            if limit is not None:
                of_plan = plan.config, plan.model.model_def, plan.model.axes
                report.problems += memory_problems(*of_plan, *limit)
    with report.hearing():
        try:
            if (inference := config.inference) is not None:
                cost = parse_perturbation(inference.perturbation).cost()
                report.notes += [cost] if cost and inference.members > 1 else []
        except ConfigError as error:
            if not report.trains:
                raise
            why = "(training does not read it)"
            report.notes += [f"{line} {why}" for line in error.problems]
    report.problems = [*dict.fromkeys(report.problems)]
    report.notes = [*dict.fromkeys(report.notes)]
    return report


def _channels_alone(
    mapping: Mapping[str, Any],
) -> tuple[DataConfig | None, ChannelSchema | None]:
    """Data section and channels of a config that may not parse as a whole."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            data = parse(DataConfig, mapping["data"], "data")
        except (KeyError, ValueError):
            return None, None
    model = mapping.get("model")
    levels = model.get("levels") if isinstance(model, Mapping) else None
    levels = levels if isinstance(levels, int) and levels > 0 else 1
    return data, ChannelSchema.from_config(data, data.num_levels(levels))


_OF_PLAN = ("model", "mesh", "geometry", "memory", "curriculum")


def _document_of(
    plan: RunPlan, levels: Mapping[str, Any], bound: StepBound | None
) -> dict[str, Any]:
    """The parts of the document that are those of a plan."""
    config, data = plan.config, plan.config.data
    trainer, model_def, axes = config.trainer, plan.model.model_def, plan.model.axes
    memory = estimate_memory(config, model_def, axes)
    geometry: dict[str, Any] | None = None
    if (sizes := plan.model.config.geometry()) is not None:
        geometry = {"grid": [*sizes.grid], "padded": [*sizes.padded]}
        geometry["stages"] = [
            {
                **asdict(stage),
                "rows": local_points(stage, axes.num_domain) / stage.width,
            }
            for stage in sizes.stages
        ]
    stages = []
    for stage, length in zip(config.stages, plan.stage_lengths, strict=True):
        seconds = None if bound is None else update_seconds(bound, config, stage)
        stages.append(
            {
                "settings": summary_of(stage),
                "forecast_len": stage.data.forecast_len,
                "updates": length.updates,
                "epochs": length.epochs,
                "bytes_a_device": estimate_memory(stage, model_def, axes).total,
                "update_seconds_at_least": seconds,
            }
        )
    ranks = 1 if config.shares_batches else axes.num_data
    return {
        "further_inputs": {
            name: [*_each_channel(schema.input, levels)]
            for name, schema in plan.further_schemas.items()
        }
        | {name: [*which] for name, which in data.time_encoding.items()},
        "model": {
            "type": config.model["type"],
            "grid": [*plan.model.grid],
            "parameters": model_def.num_parameters,
            "trained_parameters": sum(s.size for s in model_def.trainable.values()),
            "active_parameters": model_def.num_active_parameters,
            "parts": parameter_count(model_def),
        },
        "mesh": {
            "devices": plan.num_devices,
            "data_parallel": axes.num_data,
            "parameter_shards": axes.num_shard,
            "expert": axes.num_expert,
            "tensor": axes.num_tensor,
            "domain": axes.num_domain,
            "samples_an_update": trainer.train_batch_size
            * trainer.grad_accum_every
            * ranks,
            "members": trainer.ensemble_size,
        },
        "geometry": geometry,
        "memory": {"bytes_a_device": memory.total, "parts": memory.parts},
        "curriculum": stages,
    }


def _each_channel(
    groups: Sequence[ChannelGroup], levels: Mapping[str, Sequence[float] | None]
) -> Iterator[dict[str, Any]]:
    number = 0
    for group in groups:
        values = levels.get(group.source) or ()
        deep = group.var_key.split("/")[2] == "3d"
        for index in range(group.n_levels):
            listed = deep and len(values) == group.n_levels
            yield {
                "channel": number,
                "variable": group.variable,
                "source": group.source,
                "field_type": group.field_type,
                "level": index + 1 if deep else None,
                "level_value": values[index] if listed else None,
            }
            number += 1


def _tables(title: str, value: Any) -> Iterator[Table]:
    """Tables of a part of the document: of its values, and of each list in it."""
    style: Any = {"box": box.SIMPLE_HEAD, "title_justify": "left"}
    if isinstance(value, Mapping):
        table, inner = Table(title=Text(title), show_header=False, **style), {}
        for key, each in value.items():
            rows = isinstance(each, list) and each and isinstance(each[0], Mapping)
            if rows or isinstance(each, Mapping):
                inner[key] = each
            else:
                table.add_row(_cell("", key), _cell(f"{title} {key}", each))
        if table.rows:
            yield table
        for key, each in inner.items():
            yield from _tables(f"{title}: {key}", each)
    elif value:
        table = Table(title=Text(title), **style)
        for key in value[0]:
            table.add_column(key.replace("_", " "), justify="right")
        for row in _ranges(value) if "channel" in value[0] else value:
            table.add_row(*(_cell(key, each) for key, each in row.items()))
        yield table


def _ranges(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for the channels of each variable: first and last of each number."""
    for _, group in groupby(rows, lambda row: (row["source"], row["variable"])):
        first, *others = group
        last = others[-1] if others else first
        yield {
            key: value if last[key] == value else f"{_cell('', value)} - {last[key]}"
            for key, value in first.items()
        }


def _cell(name: str, value: Any) -> Text:
    """A value as text, without markup and terminal escapes."""
    if value is None:
        text = ""
    elif "bytes" in name or name.startswith("Memory"):
        unit, size = ("GiB", GIB) if value >= GIB else ("MiB", MIB)
        text = f"{value / size:.2f} {unit}"
    elif isinstance(value, int):
        text = f"{value:,}"
    elif isinstance(value, float):
        text = f"{value:.4g}"
    else:
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return Text(printable(text))
