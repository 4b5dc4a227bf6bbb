"""To CREDIT's gen2 and back: every file of configs/, and every config of CREDIT."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.configs.survey import ENVIRONMENT, find_configs
from benchmarks.configs.table import FOLDER
from credit_jax.config import Config, build_config
from credit_jax.config.yaml_file import read_yaml
from credit_jax.named_fields.tree import TARGET
from credit_jax.plan import plan_run
from credit_torch_bridge import convert_config
from credit_torch_bridge.config.editor import dotted, leaves, same

# Keys without effect here, of which CREDIT's configs have many.
pytestmark = pytest.mark.filterwarnings("ignore:.*ignored here")

CONFIGS = Path(__file__).parents[3] / "configs"
# What CREDIT's gen2 cannot express, as the conversion says it.
REFUSED = (
    "active: gen1 corrects inside the model, before the loss, and gen2's training",
    "CREDIT has no model wxformer_moe",
    "CREDIT has no postblock era5_normalizer",
)
# Sections whose keys mean nothing to training, and keys of the machine.
_APART = (
    "demo",
    "inference_section",
    "validation_overrides",
    "trainer",
    "metrics",
    "postblocks",
)
_MACHINE = ("num_devices", "fsdp", "parallelism", "activation_checkpoint")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def names() -> list[str]:
    ours = [str(path) for path in sorted(CONFIGS.glob("*.yaml"))]
    return ours + [str(path) for path in find_configs(FOLDER)]


def every_key_has_a_line(before: Mapping[str, Any], after: Any, report: Any) -> None:
    """Asserts that each value is still there, or named by a change."""
    values = dict(leaves(after))
    named = {change.path for change in report.changes}
    for path, value in leaves(before):
        if not (path in values and same(values[path], value)) and value not in (
            None,
            {},
        ):
            prefixes = [path[:n] for n in range(1, len(path) + 1)]
            assert named & set(prefixes), dotted(path)


@pytest.mark.parametrize(
    "path", names(), ids=lambda path: os.path.relpath(path, CONFIGS.parent)
)
def test_there_and_back(path: str) -> None:
    try:
        whole = read_yaml(path)
        ours, report = convert_config(whole, to="jax")
        config = build_config(ours)
        plan = plan_run(config, with_data=False)
    except ValueError:
        assert "credit_configs" in path, "every file of configs/ trains"
        return  # the table of docs/bridge.md says why
    if plan.problems:
        assert "credit_configs" in path, plan.problems
        return
    every_key_has_a_line(whole, ours, report)
    try:
        credit, report = convert_config(ours, to="gen2")
    except ValueError as error:
        reasons = str(error).splitlines()[1:]
        assert all(any(text in line for text in REFUSED) for line in reasons), reasons
        return
    every_key_has_a_line(ours, credit, report)
    back, report = convert_config(credit, to="jax")
    every_key_has_a_line(credit, back, report)
    again = build_config(back)
    devices = plan.num_devices
    assert not plan_run(again, with_data=False, num_devices=devices).problems
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
    assert again.validation_data == config.validation_data
    trainers = [
        {k: v for k, v in dict(c.trainer).items() if k not in _MACHINE}
        for c in (config, again)
    ]
    assert trainers[0] == trainers[1]
    degrees = [c.trainer.parallelism for c in (config, again)]
    for name in ("data", "tensor", "domain"):
        assert getattr(degrees[0], name) == getattr(degrees[1], name)
    written = [
        dict(c.metrics.args) if c.metrics is not None else {} for c in (config, again)
    ]
    assert written[1] in (written[0], written[0] | {"var_weighting": "none"})
    schemas = [
        plan_run(c, with_data=False, num_devices=devices).schema
        for c in (config, again)
    ]
    assert schemas[0] == schemas[1]
