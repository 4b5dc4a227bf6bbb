"""Converts the state of torch.optim.AdamW, keyed by number or by name.

PyTorch counts the updates of each parameter; optax has one count. The counts are equal
except for parameters that no output depends on, such as the patch embedding of one
point, which never get a gradient: PyTorch has no state for them, or zeros. In
credit_jax their moments are zero, and no state is written back. Frozen parameters are
in PyTorch's group without state, and have no moments in credit_jax.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from credit_jax.config.trainer import TrainerConfig
from credit_jax.state_dict.key_map import Arrays, KeyMap
from credit_jax.state_dict.key_table import raise_non_finite, raise_problems
from credit_jax.training.optimizer import BETAS, EPSILON
from credit_torch_bridge.checkpoint.jax_checkpoint import Moments
from credit_torch_bridge.checkpoint.torch_files import LazyArray, as_tensors

STEP, FIRST, SECOND = "step", "exp_avg", "exp_avg_sq"
# Number of updates after which AdamW's bias corrections are 1 in float32: 0.95 ** 400
# is 1e-9.
CORRECTED = 400


def read_moments(
    optimizer: Mapping[str, Any], key_map: KeyMap
) -> tuple[Moments, dict[str, Any]]:
    """The moments of an optimizer's state dict, and the settings of its group."""
    group, entries = _entries(optimizer, key_map)
    # Checks that settings equal those of `credit_jax.training.optimizer`.
    betas = tuple(group.get("betas", BETAS))
    problems = []
    if betas != BETAS:
        problems.append(f"betas are {betas}, expected {BETAS}")
    if group.get("eps", EPSILON) != EPSILON:
        problems.append(f"eps is {group['eps']}, expected {EPSILON}")
    problems += [f"{k} is on" for k in ("amsgrad", "maximize") if group.get(k)]
    if group.get("decoupled_weight_decay") is False:
        problems.append("weight decay is not decoupled: it is Adam, not AdamW")
    raise_problems(problems, "optimizer: not set up as CREDIT's AdamW")
    trainable = key_map.trainable
    frozen = set(key_map.keys) - set(trainable.keys)
    raise_problems(
        [
            f"{key} has the moment {kind}, but the model keeps this parameter frozen"
            for key, entry in entries.items()
            if key in frozen
            for kind in (FIRST, SECOND)
            if torch.as_tensor(entry[kind]).any()
        ],
        "optimizer: of a model with other trained parameters (CREDIT ignores "
        "trainer.finetune: leave it out of the config if all were trained)",
    )
    entries = {key: entries[key] for key in trainable.keys if key in entries}
    moments: dict[str, Arrays] = {}
    for kind in (FIRST, SECOND):
        values = {key: entry[kind] for key, entry in entries.items()}
        state = as_tensors(values, f"optimizer, {kind}") if values else {}
        tensors = {key: LazyArray(tensor) for key, tensor in state.items()}
        raise_non_finite(tensors, f"optimizer, {kind}: NaN or infinite values")
        absent = {p.key: p for p in trainable.entries if p.key not in tensors}
        zeros = {
            key: np.broadcast_to(np.float32(0), p.arrangement.torch_shape(p.shape))
            for key, p in absent.items()
        }
        try:
            moments[kind], _ = trainable.read(tensors | zeros)
        except ValueError as error:
            raise ValueError(f"optimizer, {kind}: {error}") from None
    count = _count({key: entry[STEP] for key, entry in entries.items()})
    return Moments(moments[FIRST], moments[SECOND], count), group


def _entries(
    optimizer: Mapping[str, Any], key_map: KeyMap
) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]]]:
    """The parameter group, and the state of each parameter by its key in the table."""
    state, groups = optimizer.get("state"), optimizer.get("param_groups")
    if isinstance(groups, Mapping):
        groups = list(groups.values())
    if not isinstance(state, Mapping) or not isinstance(groups, Sequence) or not groups:
        raise ValueError(
            "optimizer: expected a dict of state and param_groups, got "
            f"{', '.join(map(repr, list(optimizer)[:4])) or 'an empty dict'}"
        )
    group = groups[0]
    if not isinstance(group, Mapping) or not isinstance(group.get("params"), list):
        raise ValueError("optimizer: param_groups[0] does not list its parameters")
    # The keys of the group -> those of the table.
    params, keys = group["params"], key_map.optimized.keys
    if all(isinstance(key, str) for key in params):
        names: dict[Any, str]
        names = {r.file_key: r.name for r in key_map.current_names(params)}
    elif len(params) != len(keys):
        raise ValueError(
            f"optimizer: has {len(params)} parameters, the model {len(keys)}; it "
            "belongs to another model section"
        )
    else:
        names = dict(zip(params, keys, strict=True))
    entries = {}
    for key, entry in state.items():
        number = int(key) if isinstance(key, str) and key.isdigit() else key
        if number not in names:
            if len(groups) > 1:
                # A second group has parameters of a loss; CREDIT cannot resume them.
                continue
            raise ValueError(f"optimizer: state for {key!r}, which is no parameter")
        if not isinstance(entry, Mapping) or set(entry) != {STEP, FIRST, SECOND}:
            got = sorted(entry) if isinstance(entry, Mapping) else type(entry).__name__
            raise ValueError(
                f"optimizer: the state of {key!r} has {got}, expected "
                f"{[FIRST, SECOND, STEP]}: it is not that of CREDIT's AdamW"
            )
        entries[names[number]] = entry
    return dict(group), entries


def _count(steps: Mapping[str, Any]) -> int:
    """The number of updates, from the counts of all parameters."""
    counts = {}
    for key, step in steps.items():
        if not isinstance(step, int | float | torch.Tensor):
            raise ValueError(f"optimizer: step of {key} is {step!r}, expected a number")
        value = float(step)
        if not (value >= 0 and value.is_integer()):
            raise ValueError(f"optimizer: step of {key} is {value}, expected a count")
        counts[key] = int(value)
    done = {count for count in counts.values() if count > 0}
    if len(done) > 1 and min(done) < CORRECTED:
        least = min((k for k in counts if counts[k]), key=counts.__getitem__)
        raise ValueError(
            f"optimizer: parameters were updated a different number of times, "
            f"{min(done)} ({least}) to {max(done)}. One count stands for all here; "
            f"that is exact only from {CORRECTED} updates on. --weights-only takes the "
            "weights without the optimizer"
        )
    return max(done, default=0)


def write_moments(
    moments: Moments,
    key_map: KeyMap,
    trainer: TrainerConfig,
    learning_rate: float,
    *,
    idle: Collection[str] = (),
) -> dict[str, Any]:
    """Builds the optimizer's state dict: the inverse of `read_moments`."""
    # CREDIT then requires keys by name, otherwise by number.
    by_name = trainer.parallelism.data == "fsdp2"
    trainable, listed = key_map.trainable, key_map.optimized.keys
    mu = trainable.write(moments.mu, {})
    nu = trainable.write(moments.nu, {})
    state = {
        key if by_name else index: {
            STEP: torch.tensor(float(moments.count)),
            FIRST: torch.from_numpy(mu[key]),
            SECOND: torch.from_numpy(nu[key]),
        }
        for index, key in enumerate(listed)
        # `idle` parameters have no gradient: without moments they have no state.
        if key in mu and (key not in idle or mu[key].any() or nu[key].any())
    }
    # The settings that torch writes for CREDIT's AdamW, in torch's order.
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW(
        [parameter],
        lr=trainer.learning_rate,
        betas=BETAS,
        eps=EPSILON,
        weight_decay=trainer.weight_decay,
    )
    group = optimizer.state_dict()["param_groups"][0]
    group.pop("params")
    if not trainer.keeps_rate:
        group["initial_lr"] = trainer.learning_rate
    group["lr"] = learning_rate
    if by_name:
        group["betas"] = list(group["betas"])
    group["params"] = listed if by_name else list(range(len(listed)))
    return {"state": state, "param_groups": [group]}
