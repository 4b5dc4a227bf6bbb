"""Comparison of samples with CREDIT's own MultiSourceDataset."""

import copy
import warnings
from typing import Any

import numpy as np

from credit_jax.config import parse
from credit_jax.config.data import DataConfig
from credit_jax.data import Dataset, Sample, open_dataset
from credit_jax.data.calendars import to_labels
from credit_torch_bridge.compare.jax_side import import_torchvision


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


def starts_of(theirs: Any) -> np.ndarray:
    """Returns the start times of CREDIT's data set as labels."""
    return to_labels(theirs.datetimes.values)


def compare_samples(
    data: dict[str, Any], theirs: Any = None, indices: Any = None, exact: bool = True
) -> tuple[Dataset, int]:
    """Asserts equal start times, and bitwise equal samples at some of them.

    Args:
        data: the section.
        theirs: CREDIT's data set, if it is open already.
        indices: of samples; all by default.
        exact: whether values must be equal bit for bit; if False, only names, shapes
            and dtypes are compared.

    Returns:
        credit_jax's data set, and the number of compared fields.
    """
    ours = our_dataset(data)
    theirs = credit_dataset(data) if theirs is None else theirs
    assert np.array_equal(ours.starts, starts_of(theirs))
    count = 0
    for index in range(len(ours)) if indices is None else indices:
        for step in range(ours.num_steps):
            time = theirs.datetimes[index] + step * theirs.dt
            count += _compare(ours.step(index, step), theirs[(time, step)], exact)
    assert count > 0
    return ours, count


def _compare(sample: Sample, expected: Any, exact: bool) -> int:
    """Compares two samples; returns the number of compared fields."""
    count = 0
    for part in ("input", "target"):
        for source, fields in expected[part].items():
            own = getattr(sample, part)[source]
            assert set(own) == set(fields), (part, source)
            for key, field in fields.items():
                values = field.numpy()
                assert own[key].shape == values.shape, key
                assert own[key].dtype == np.float32
                if exact:
                    same = own[key].tobytes() == values.tobytes()
                    assert same, f"{key} of {sample.input_time}"
                count += 1
    return count
