"""Batches from CREDIT's own data set, sampler, loader and preblocks."""

import copy
import warnings
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from credit_torch_bridge.compare.jax_side import import_torchvision


def credit_loader(
    raw: dict[str, Any], rank: int, world_size: int, train: bool
) -> DataLoader:
    """Returns CREDIT's loader of one data-parallel rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_torchvision()
        from credit.trainers.utils import load_dataloader, load_dataset
    raw = copy.deepcopy(raw)
    # CREDIT requires every key in the validation section, and writes into save_loc.
    if raw.get("validation_data"):
        raw["validation_data"] = {**raw["data"], **raw["validation_data"]}
    raw["save_loc"] = None
    dataset = load_dataset(raw, is_train=train)
    return load_dataloader(raw, dataset, rank, world_size, train)


def credit_batches(
    raw: dict[str, Any], rank: int = 0, world_size: int = 1, train: bool = True
) -> list[dict[str, np.ndarray]]:
    """Returns x, y and input times of every batch of an epoch of one dp rank."""
    loader = credit_loader(raw, rank, world_size, train)
    from credit.preblock import apply_preblocks, build_preblocks

    phases = [build_preblocks(raw, phase) for phase in ("ic_only", "per_step")]
    out = []
    with torch.no_grad():
        for batch in loader:
            for phase in phases:
                batch = apply_preblocks(phase, batch)
            times = next(iter(batch["metadata"]["input"].values()))["datetime"]
            arrays = {key: batch[key].numpy() for key in ("x", "y")}
            out.append({**arrays, "times": times.to_numpy("datetime64[ns]")})
    return out


def credit_steps(raw: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Returns the raw fields of every forecast step of each batch of an epoch."""
    steps = iter(credit_loader(raw, 0, 1, True))
    count = raw["data"]["forecast_len"]
    batches: list[list[dict[str, Any]]] = []
    for step in steps:
        if not batches or len(batches[-1]) == count:
            batches.append([])
        batches[-1].append(step)
    return batches
