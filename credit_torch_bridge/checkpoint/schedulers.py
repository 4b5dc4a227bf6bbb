"""Converts the position of CREDIT's learning-rate schedules.

In credit_jax the rate is a function of the micro-batches seen. CREDIT's schedules have
counters: `linear-warmup-cosine` and `cosine-annealing-restarts` count micro-batches,
`cosine-annealing` counts epochs, and `lambda` counts twice per epoch. The state of
`plateau`, the best metric and the epochs since then, is the same in both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, ReduceLROnPlateau

from credit_jax.checkpoint import PlateauState, Progress
from credit_jax.config.trainer import TrainerConfig

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
    if batches_per_epoch is None:
        raise ValueError(
            f"{kind!r} counts epochs, and the batches of an epoch are not known: set "
            "trainer.batches_per_epoch, or give --batches-per-epoch"
        )
    return steps // PER_EPOCH[kind] * batches_per_epoch


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
        if batches_per_epoch is None:
            raise ValueError(
                f"{kind!r} counts epochs, and the batches of an epoch are not known: "
                "set trainer.batches_per_epoch, or give --batches-per-epoch"
            )
        # The state of a torch schedule after some steps; its cosine is recursive.
        schedule = (
            CosineAnnealingLR(optimizer, **settings)
            if kind == COSINE
            else LambdaLR(optimizer, lr_lambda=_lambda_factor)
        )
        optimizer.step()
        for _ in range(micro_step // batches_per_epoch * PER_EPOCH[kind]):
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
