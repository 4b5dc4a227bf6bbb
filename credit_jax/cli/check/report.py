"""The report on a config: channels, ignored keys, problems, a bound of the time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from credit_jax.config import Config, ConfigError, apply_overrides, build_config, parse
from credit_jax.config.base import ConfigWarning
from credit_jax.config.data import DataConfig
from credit_jax.config.load import for_forecasts, forecasts_alone, is_gen1
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data import ChannelSchema
from credit_jax.data.schema import num_levels
from credit_jax.demo.dataset import expected_files
from credit_jax.parallel.mesh.devices import free_memory
from credit_jax.plan import RunPlan, plan_run
from credit_jax.plan.memory import memory_problems
from credit_jax.plan.perturbations import singular_cost
from credit_jax.plan.roofline import DEVICES, StepBound, step_bound
from credit_jax.training.rehearsal import rehearse

Result = TypeVar("Result")


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
        trains: whether the config has a section to train with; without one it is
            checked for forecasts, which need none.
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
    trains: bool = True


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
    trains = not forecasts_alone(mapping)
    if not trains:
        mapping, with_data = for_forecasts(mapping), False
    build = partial(build_config, mapping, source=str(path), training=trains)
    try:
        config = _heard(build, ignored, notes)
    except ValueError as error:
        errors, channels = _lines(error), _channels_alone(mapping)
        return CheckReport(str(path), kind, errors, tuple(notes), ignored, *channels)
    plan = _heard(lambda: _plan(config, num_devices, with_data), ignored, notes)
    problems = plan.problems
    if not problems and trains:
        problems = _heard(lambda: tuple(rehearse(plan)), ignored, notes)
    try:
        inference = _heard(lambda: config.inference, ignored, notes)
        if (
            inference
            and inference.members > 1
            and inference.perturbation.type == "singular"
        ):
            notes.append(singular_cost(inference.perturbation))
    except ValueError as error:
        if trains:
            notes += [f"{line} (training does not read it)" for line in _lines(error)]
        else:
            problems = (*problems, *_lines(error))
    if trains:
        problems = (*problems, *_too_large(plan, device, with_data))
    every = tuple(dict.fromkeys((*plan.notes, *notes)))
    data, schema = config.data, plan.schema
    bound = _bound(plan, device)
    return CheckReport(
        str(path), kind, problems, every, ignored, data, schema, plan, bound, trains
    )


def _bound(plan: RunPlan, device: str | None) -> StepBound | None:
    """Lower bound of the time of a step; None without a device or a valid plan."""
    model_def, axes = plan.model.model_def, plan.model.axes
    if device is None or model_def is None or axes is None or plan.problems:
        return None
    return step_bound(device, plan.config, model_def, axes)


def _too_large(plan: RunPlan, device: str | None, with_data: bool) -> list[str]:
    """A problem for each stage that does not fit the memory of a device.

    Without the name of one it is that of the machine, where the data are looked for.
    """
    model_def, axes = plan.model.model_def, plan.model.axes
    if model_def is None or axes is None or not (device or with_data):
        return []
    if device is not None:
        known = DEVICES[device]
        limit: tuple[float, str] | None = known.memory, known.name
    else:
        limit = free_memory(plan.num_devices)
    if limit is None:
        return []
    return memory_problems(plan.config, model_def, axes, *limit)


def _plan(config: Config, num_devices: int | None, with_data: bool) -> RunPlan:
    return plan_run(
        config,
        num_devices=num_devices,
        with_data=with_data,
        expected_files=expected_files(config.demo),
    )


def _heard(
    make: Callable[[], Result], ignored: dict[str, str], notes: list[str]
) -> Result:
    """Calls `make`, and adds its warnings to `ignored` and `notes`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        result = make()
    for warning in caught:
        if isinstance(warning.message, ConfigWarning):
            ignored |= warning.message.ignored
        else:
            notes.append(str(warning.message))
    return result


def _section(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = mapping.get(key)
    return section if isinstance(section, Mapping) else {}


def _channels_alone(
    mapping: Mapping[str, Any],
) -> tuple[DataConfig | None, ChannelSchema | None]:
    """Data section and channels of a config that does not parse as a whole."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            data = parse(DataConfig, mapping["data"], "data")
        except (KeyError, ValueError):
            return None, None
    levels = _section(mapping, "model").get("levels")
    levels = levels if isinstance(levels, int) and levels > 0 else 1
    return data, ChannelSchema.from_config(data, num_levels(data, levels))


def _lines(error: Exception) -> tuple[str, ...]:
    return error.problems if isinstance(error, ConfigError) else (str(error),)


def _convert(path: str | Path) -> str:
    new = Path(path).with_suffix(".gen2.yml")
    return (
        f"data: has flat variables, as CREDIT's generation 1; convert the file first: "
        f"credit-jax config --to jax {path} --out {new}"
    )
