"""Variances of the targets, by which losses and metrics weigh variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from credit_jax.named_fields import target_variances
from credit_jax.plan.findings import Findings


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
