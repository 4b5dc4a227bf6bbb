"""Variances of the targets, by which losses and metrics weigh variables."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from credit_jax.named_fields import target_variances
from credit_jax.plan.findings import Findings


def read_tendencies(named: str, channels: Mapping[str, int]) -> dict[str, list[float]]:
    """Reads the variances of tendencies that `preprocess` fits, by variable key.

    Args:
        named: path of the file.
        channels: number of channels of each target variable by key.

    Raises:
        ValueError: it is no such file, or of other variables.
    """
    path, where = os.path.expandvars(named), f"loss.tendency_weights: {named}"
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        read = {key: [float(v) for v in variances] for key, variances in values.items()}
    except (ValueError, TypeError, AttributeError) as error:
        text = f"{where} is no file of tendencies that preprocess writes ({error})"
        raise ValueError(text) from error
    fit = all(len(v) == channels.get(key) and min(v) > 0 for key, v in read.items())
    if not fit or not read:
        raise ValueError(
            f"{where} has the variances of other variables or levels: "
            f"{ {key: len(v) for key, v in read.items()} }, the targets have "
            f"{dict(channels)}; fit it anew: credit-jax preprocess --overwrite"
        )
    return read


def variance_reader(
    key: str, targets: Iterable[str], findings: Findings, *, opened: bool
) -> Callable[[str], dict[str, float]]:
    """Returns a function that reads the variances of a scaler file.

    It returns variances by variable key: none if there is no such file, which
    `find_missing` reports. It raises ValueError as `target_variances` does.

    Args:
        key: dotted key of the config that names the file.
        targets: keys of the variables that are weighed.
        findings: receives a note on those that have no variance in the file.
        opened: whether the plan reads files.
    """

    def read(path: str) -> dict[str, float]:
        if not opened or not Path(os.path.expandvars(path)).exists():
            return {}
        variances = target_variances(path)
        missing = [name for name in targets if name not in variances]
        if missing:
            findings.notes.append(
                f"{key}: {path} has no variance of {', '.join(missing)}, weighed as "
                f"if it were 1, as in CREDIT; it has: {', '.join(variances) or 'none'}"
            )
        return variances

    return read
