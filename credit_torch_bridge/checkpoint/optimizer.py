"""Converts the states of torch.optim.AdamW, keyed by number or by name, and schedules.

PyTorch counts the updates of each parameter; optax has one count. The counts are equal
except for parameters that no output depends on, such as the patch embedding of one
point, which never get a gradient: PyTorch has no state for them, or zeros. In
credit_jax their moments are zero, and no state is written back. Frozen parameters are
in PyTorch's group without state, and have no moments in credit_jax.

In credit_jax the rate is a function of the micro-batches seen. CREDIT's schedules have
counters: `linear-warmup-cosine` and `cosine-annealing-restarts` count micro-batches,
`cosine-annealing` counts epochs, and `lambda` counts twice per epoch. The state of
`plateau`, the best metric and the epochs since then, is the same in both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, ReduceLROnPlateau

from credit_jax.checkpoint import PlateauState, Progress
from credit_jax.config.trainer import TrainerConfig
from credit_jax.state_dict.key_map import Arrays, KeyMap
from credit_jax.state_dict.key_table import raise_non_finite, raise_problems
from credit_jax.training.optimizer import BETAS, EPSILON
from credit_torch_bridge.checkpoint.jax_checkpoint import Moments
from credit_torch_bridge.checkpoint.torch_checkpoint import LazyArray, as_tensors

WARMUP, RESTARTS = "linear-warmup-cosine", "cosine-annealing-restarts"
COSINE, LAMBDA, PLATEAU = "cosine-annealing", "lambda", "plateau"
# Steps of the schedule per epoch, for those that do not count micro-batches.
PER_EPOCH = {COSINE: 1, LAMBDA: 2}

# Fields of a schedule's state that are settings, and their keys in the config.
_SETTINGS = {
    WARMUP: {"warmup_steps": "warmup_steps", "total_steps": "total_steps",
             "min_lr": "min_lr"},
    RESTARTS: {"first_cycle_steps": "first_cycle_steps", "cycle_mult": "cycle_mult",
               "base_max_lr": "max_lr", "min_lr": "min_lr",
               "warmup_steps": "warmup_steps", "gamma": "gamma"},
    COSINE: {"T_max": "T_max", "eta_min": "eta_min"},
    LAMBDA: {},
    PLATEAU: {key: key for key in ("mode", "factor", "patience", "threshold",
                                   "threshold_mode", "cooldown", "eps")},
}  # fmt: skip
_COMMON = ("base_lrs", "last_epoch")
# Fields of torch's ReduceLROnPlateau instead.
_PLATEAU = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch", "min_lrs")
_LAMBDA_EPOCHS, _LAMBDA_WARMUP = 100, 10


def read_position(
    state: Mapping[str, Any], kind: str, batches_per_epoch: int | None
) -> int:
    """Returns the micro-batches seen, from the state of a schedule with a counter."""
    further = ("lr_lambdas",) if kind == LAMBDA else ()
    steps = _checked_count(state, kind, (*_COMMON, *further))
    if kind not in PER_EPOCH:
        return steps
    return steps // PER_EPOCH[kind] * _batches(kind, batches_per_epoch)


def _batches(kind: str, batches_per_epoch: int | None) -> int:
    if batches_per_epoch is None:
        raise ValueError(
            f"{kind!r} counts epochs, and the batches of an epoch are not known: set "
            "trainer.batches_per_epoch, or give --batches-per-epoch"
        )
    return batches_per_epoch


def _checked_count(state: Mapping[str, Any], kind: str, needed: Sequence[str]) -> int:
    """`last_epoch` of the state of a schedule."""
    lacking = [key for key in (*needed, *_SETTINGS[kind]) if key not in state]
    steps = state.get("last_epoch")
    if lacking or not isinstance(steps, int) or steps < 0:
        raise ValueError(
            f"scheduler_state_dict: not the state of {kind!r}, which the config asks "
            f"for (it lacks {', '.join(lacking) or 'a last_epoch from 0 on'})"
        )
    return steps


def read_plateau(state: Mapping[str, Any]) -> PlateauState:
    """The state of `plateau` from that of torch's ReduceLROnPlateau."""
    epochs = _checked_count(state, PLATEAU, _PLATEAU)
    best = float(state["best"])
    return PlateauState(
        epochs=epochs,
        best=best if math.isfinite(best) else None,
        bad_epochs=int(state["num_bad_epochs"]),
        cooldown=int(state["cooldown_counter"]),
    )


def settings_of(state: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Settings that a resumed run of CREDIT takes from the state, by config key."""
    settings = {
        f"trainer.scheduler.{current}": state[other]
        for other, current in _SETTINGS[kind].items()
    }
    if kind == PLATEAU:
        return settings | {"trainer.scheduler.min_lr": state["min_lrs"][0]}
    rates = state["base_lrs"]
    if kind != RESTARTS and isinstance(rates, list) and rates:
        settings["trainer.learning_rate"] = rates[0]
    return settings


def write_position(
    trainer: TrainerConfig,
    micro_step: int,
    batches_per_epoch: int | None,
    progress: Progress | None = None,
) -> tuple[dict[str, Any] | None, float]:
    """CREDIT's scheduler state, None without one, and the rate that it sets."""
    kind = trainer.schedule and trainer.schedule.scheduler_type
    stored_rate = None if progress is None else progress.learning_rate
    # The run has a rate that is no function of `micro_step`.
    rate = trainer.learning_rate if stored_rate is None else stored_rate
    if kind is None:
        return None, rate
    settings = trainer.scheduler.model_dump() if trainer.scheduler else {}
    settings.pop("scheduler_type")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=trainer.learning_rate)
    if kind == PLATEAU:
        # The state of torch's ReduceLROnPlateau that corresponds to ours.
        state = (progress and progress.plateau) or PlateauState()
        seen = {
            "last_epoch": state.epochs,
            "num_bad_epochs": state.bad_epochs,
            "cooldown_counter": state.cooldown,
            "_last_lr": [rate],
        } | ({} if state.best is None else {"best": state.best})
        return ReduceLROnPlateau(optimizer, **settings).state_dict() | seen, rate
    if kind in PER_EPOCH:
        # The state of a torch schedule after some steps; its cosine is recursive.
        schedule = (
            CosineAnnealingLR(optimizer, **settings)
            if kind == COSINE
            else LambdaLR(optimizer, lr_lambda=_lambda_factor)
        )
        optimizer.step()
        epochs = micro_step // _batches(kind, batches_per_epoch)
        for _ in range(epochs * PER_EPOCH[kind]):
            schedule.step()
        return schedule.state_dict(), optimizer.param_groups[0]["lr"]
    if kind == WARMUP:
        return _warmup_cosine(trainer.learning_rate, micro_step, **settings)
    return _restarts(micro_step, **settings)


def _lambda_factor(index: int) -> float:
    """CREDIT's `lr_lambda_phase1`."""
    if index < _LAMBDA_WARMUP:
        return index / _LAMBDA_WARMUP
    progress = (index - _LAMBDA_WARMUP) / (_LAMBDA_EPOCHS - _LAMBDA_WARMUP)
    return 0.5 * (1 + math.cos(math.pi * progress))


def _warmup_cosine(
    base: float, steps: int, *, warmup_steps: int, total_steps: int, min_lr: float
) -> tuple[dict[str, Any], float]:
    """`LinearWarmupCosineScheduler`."""
    if steps < warmup_steps:
        rate = base * steps / max(1, warmup_steps)
    else:
        progress = (steps - warmup_steps) / max(1, total_steps - warmup_steps)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))
        rate = min_lr + (base - min_lr) * cosine
    state = {
        "warmup_steps": warmup_steps,
        "total_steps": total_steps,
        "min_lr": min_lr,
        # The counters of torch's LRScheduler.
        "base_lrs": [base],
        "last_epoch": steps,
        "_step_count": steps + 1,
        "_is_initial": False,
        "_get_lr_called_within_step": False,
        "_last_lr": [rate],
    }
    return state, rate


def _restarts(
    steps: int,
    *,
    first_cycle_steps: int,
    cycle_mult: float,
    max_lr: float,
    min_lr: float,
    warmup_steps: int,
    gamma: float,
) -> tuple[dict[str, Any], float]:
    """`CosineAnnealingWarmupRestarts`."""
    cycle, index, length = 0, steps, first_cycle_steps
    while index >= length:
        index, cycle = index - length, cycle + 1
        length = int((length - warmup_steps) * cycle_mult) + warmup_steps
    top = max_lr * gamma**cycle
    if steps == 0:
        rate = min_lr
    elif index < warmup_steps:
        rate = (top - min_lr) * index / warmup_steps + min_lr
    else:
        phase = math.pi * (index - warmup_steps) / (length - warmup_steps)
        rate = min_lr + (top - min_lr) * (1 + math.cos(phase)) / 2
    state = {
        "first_cycle_steps": first_cycle_steps,
        "cycle_mult": cycle_mult,
        "base_max_lr": max_lr,
        "max_lr": top,
        "min_lr": min_lr,
        "warmup_steps": warmup_steps,
        "gamma": gamma,
        "cur_cycle_steps": length,
        "cycle": cycle,
        "step_in_cycle": index,
        # Its step() does not change torch's counters.
        "base_lrs": [min_lr],
        "last_epoch": steps,
        "_step_count": 0,
        "_is_initial": False,
    }
    return state, rate


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
