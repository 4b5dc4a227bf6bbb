"""CREDIT's own data sets, samplers, loaders and preblocks, beside ours."""

import copy
import warnings
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from credit_jax.config import parse
from credit_jax.config.data import DataConfig
from credit_jax.data import Dataset, open_dataset
from credit_jax.data.calendars import to_labels
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
    steps, count = list(credit_loader(raw, 0, 1, True)), raw["data"]["forecast_len"]
    return [steps[at : at + count] for at in range(0, len(steps), count)]


def credit_dataset(data: dict[str, Any]) -> Any:
    """Returns CREDIT's data set of a data section."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_torchvision()
        from credit.datasets.gen_2.multi_source import MultiSourceDataset

        return MultiSourceDataset(copy.deepcopy(data), return_target=True)


def our_dataset(data: dict[str, Any]) -> Dataset:
    """Returns credit_jax's data set of a data section."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return open_dataset(parse(DataConfig, data))


def compare_samples(
    data: dict[str, Any], theirs: Any = None, indices: Any = None, exact: bool = True
) -> tuple[Dataset, int]:
    """Asserts equal start times, and samples equal bit for bit, NaN, too.

    If not `exact`, only names, shapes and dtypes are compared. Returns credit_jax's
    data set, and the number of compared fields.
    """
    ours = our_dataset(data)
    theirs = credit_dataset(data) if theirs is None else theirs
    assert np.array_equal(ours.starts, to_labels(theirs.datetimes.values))
    count = 0
    for index in range(len(ours)) if indices is None else indices:
        for step in range(ours.num_steps):
            sample = ours.step(index, step)
            expected = theirs[(theirs.datetimes[index] + step * theirs.dt, step)]
            for part in ("input", "target"):
                for source, fields in expected[part].items():
                    own = getattr(sample, part)[source]
                    assert set(own) == set(fields), (part, source)
                    for key, field in fields.items():
                        values, count = field.numpy(), count + 1
                        assert own[key].shape == values.shape, key
                        assert own[key].dtype == np.float32
                        assert not exact or own[key].tobytes() == values.tobytes(), key
    assert count > 0
    return ours, count
