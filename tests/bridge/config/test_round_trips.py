"""To CREDIT's gen2 and back: every file of configs/, and every config of CREDIT."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.configs.survey import ENVIRONMENT, find_configs
from benchmarks.configs.table import FOLDER
from credit_jax.config import Config, build_config
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data.calendars import STANDARD
from credit_jax.data.schedule import make_schedule
from credit_jax.named_fields.tree import TARGET
from credit_jax.plan import RunPlan, plan_run
from credit_torch_bridge import convert_config
from credit_torch_bridge.config.convert import GEN1, kind_of
from credit_torch_bridge.config.editor import dotted, leaves
from tests.support.configs import CONFIGS, write_base

# Keys without effect here, of which CREDIT's configs have many.
pytestmark = pytest.mark.filterwarnings("ignore:.*ignored here")

# What CREDIT's gen2 cannot express, as the conversion says it.
REFUSED = (
    "active: gen1 corrects inside the model, before the loss, and gen2's training",
    "CREDIT has no model wxformer_moe",
    "CREDIT has no model spectral_tendency",
    "CREDIT has no postblock era5_normalizer",
    "trainer.backprop: full: CREDIT's gen2 cuts gradients between steps",
    "trainer.curriculum: CREDIT trains with one forecast_len a run",
)
# Sections whose keys mean nothing to training, and keys of the machine.
_APART = ("demo", "optimize_ic", "assimilation", "inference_section")
_APART += ("validation_overrides", "trainer", "metrics", "postblocks")
_MACHINE = ("num_devices", "fsdp", "parallelism", "activation_checkpoint")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def names() -> list[Any]:
    ours = [str(path) for path in sorted(CONFIGS.glob("*.yaml"))]
    credits_own = [str(path) for path in find_configs(FOLDER)]
    return ours + [pytest.param(path, marks=pytest.mark.slow) for path in credits_own]


def every_key_has_a_line(before: Mapping[str, Any], after: Any, report: Any) -> None:
    """Asserts that each value is still there, or named by a change."""
    values = dict(leaves(after))
    named = {change.path for change in report.changes}
    for path, value in leaves(before):
        same = path in values and repr(values[path]) == repr(value)
        if not same and value not in (None, {}):
            assert named & {path[:n] for n in range(1, len(path) + 1)}, dotted(path)


def same_training(config: Config, again: Config) -> None:
    """Asserts that a run is described alike, but for what has no effect on it."""
    for name in Config.model_fields:
        if name not in _APART:
            assert getattr(again, name) == getattr(config, name), name
    assert again.postblocks.post_rollout == config.postblocks.post_rollout
    steps = [dict(c.postblocks.per_step) for c in (config, again)]
    # Of the target, for CREDIT's metrics, which no config goes without.
    added = {name: steps[1].pop(name) for name in set(steps[1]) - set(steps[0])}
    assert steps[0] == steps[1]
    for block in added.values():
        assert block.type == "reconstruct" or TARGET in block.args.values()
    trainers = [
        {k: v for k, v in dict(c.trainer).items() if k not in _MACHINE}
        for c in (config, again)
    ]
    assert trainers[0] == trainers[1]
    written = [dict(c.metrics.args) if c.metrics else {} for c in (config, again)]
    assert written[1] in (written[0], written[0] | {"var_weighting": "none"})


def same_plan(plan: RunPlan, config: Config) -> None:
    """Asserts that a config has no problems, and the plan of another one."""
    again = plan_run(config, with_data=False, num_devices=plan.num_devices)
    models = [
        (p.model.dims, p.model.config, p.schema, set(p.notes)) for p in (plan, again)
    ]
    assert models[0] == models[1]
    if plan.config.inference is not None:
        ours, theirs = (
            make_schedule(c.inference, c.data.time_step, STANDARD)
            for c in (plan.config, config)
        )
        np.testing.assert_array_equal(theirs.starts, ours.starts)
        assert theirs.num_steps == ours.num_steps


def through_gen2(whole: Mapping[str, Any], plan: RunPlan) -> None:
    """Asserts the way of a config of generation 1 by generation 2, if possible."""
    try:
        gen2, report = convert_config(whole, to="gen2")
    except ValueError as error:
        assert_refused(error)
        return
    every_key_has_a_line(whole, gen2, report)
    by_gen2 = build_config(convert_config(gen2, to="jax")[0])
    same_training(plan.config, by_gen2)
    same_plan(plan, by_gen2)


def assert_refused(error: ValueError) -> None:
    reasons = str(error).splitlines()[1:]
    assert reasons
    assert all(any(text in line for text in REFUSED) for line in reasons), reasons


@pytest.mark.parametrize(
    "path", names(), ids=lambda path: os.path.relpath(path, CONFIGS.parent)
)
def test_there_and_back(path: str, tmp_path: Path) -> None:
    try:
        whole = read_yaml(path)
        finetune = (whole.get("trainer") or {}).get("finetune")
        if finetune:  # its base is a run of another config
            finetune["from"] = write_base(finetune["from"], tmp_path)
        ours, report = convert_config(whole, to="jax")
        config = build_config(ours)
        plan = plan_run(config, with_data=False)
    except ValueError:
        assert "credit_configs" in path, "every file of configs/ trains"
        return  # the table of docs/bridge.md says why
    every_key_has_a_line(whole, ours, report)
    if kind_of(whole) == GEN1:
        through_gen2(whole, plan)
    try:
        credit, report = convert_config(ours, to="gen2")
    except ValueError as error:
        assert_refused(error)
        return
    every_key_has_a_line(ours, credit, report)
    back, report = convert_config(credit, to="jax")
    every_key_has_a_line(credit, back, report)
    again = build_config(back)
    same_training(config, again)
    same_plan(plan, again)
