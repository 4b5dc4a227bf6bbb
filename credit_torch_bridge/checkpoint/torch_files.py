"""Loads files of torch.save and safetensors as numpy arrays, also untrusted ones.

`torch.load(weights_only=True)` is the only loader: a file with more than tensors and
plain values, which would run code, is refused. Files are memory-mapped.
"""

from __future__ import annotations

import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from credit_jax.state_dict.key_table import Shape

# PyTorch's name of the number of batches that a batch norm has seen.
COUNT_NAME = "num_batches_tracked"
SAFETENSORS = ".safetensors"

_ASKED = re.compile(r"GLOBAL (\S+)|function (<[^>]+>)|but got (\S+)")


def load_file(path: Path, *, verify: bool = True) -> Any:
    """Loads a file of torch.save or safetensors, with memory-mapped tensors."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty")
    if path.suffix == SAFETENSORS:
        try:
            with safe_open(os.fspath(path), framework="pt", device="cpu") as file:
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, ValueError, RuntimeError) as error:
            text = f"{path}: not a whole safetensors file ({error})"
            raise ValueError(text) from None
    zipped, damaged = zipfile.is_zipfile(path), None
    try:
        if zipped and verify:
            with zipfile.ZipFile(path) as file:  # torch.load ignores its checksums
                damaged = file.testzip()
        if damaged is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.load(
                    os.fspath(path), map_location="cpu", weights_only=True, mmap=zipped
                )
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path}: {_refusal(str(error))}") from None
    except Exception as error:
        # A broken file may raise any error.
        text = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(
            f"{path}: not a whole file of torch.save ({text}); it may be truncated, "
            "download or copy it again"
        ) from None
    raise ValueError(
        f"{path}: damaged: {damaged} differs from its checksum; download or copy it "
        "again, or read it as it is with --no-verify (as files without checksums, of "
        "torch.serialization.set_crc32_options(False))"
    )


def _refusal(message: str) -> str:
    """The class or function that a file names, from the message of torch's loader."""
    match = _ASKED.search(message)
    if match is None:
        # The message also advises to run the code of the file, which is left out.
        reason = message.partition("WeightsUnpickler error:")[2].strip().split("\n")[0]
        return (
            f"not a file of torch.save with weights ({reason or 'pickle error'}); give "
            "CREDIT's checkpoint.pt, or a whole copy of it"
        )
    subject = next(group for group in match.groups() if group)
    return (
        f"the file asks for {subject}, which is code and not weights; it was not "
        "loaded, and nothing of it was run. Save the state dicts alone with torch.save"
    )


def as_tensors(state: Any, subject: str) -> dict[str, torch.Tensor]:
    """Checks that a state dict maps strings to dense floats of 16 or 32 bits."""
    if not isinstance(state, Mapping) or not state:
        raise ValueError(
            f"{subject}: expected a state dict (name -> tensor), got {_kind(state)}"
        )
    wrong = [
        f"  {key!r}: {_kind(value)}"
        for key, value in state.items()
        if not (isinstance(key, str) and _is_dense(key, value))
    ]
    if wrong:
        more = [f"  and {len(wrong) - 8} more"] if len(wrong) > 8 else []
        lines = "\n".join(wrong[:8] + more)
        raise ValueError(
            f"{subject}: {len(wrong)} of {len(state)} entries are not floating-point "
            f"tensors of 16 or 32 bits by name:\n{lines}"
        )
    return {key: value.detach() for key, value in state.items()}


def _is_dense(key: str, value: Any) -> bool:
    """Whether an entry is a dense tensor of floats, or the count of a batch norm."""
    if not isinstance(value, torch.Tensor) or value.is_meta:
        return False
    if value.dtype == torch.int64:
        return key.endswith(f".{COUNT_NAME}") and value.shape == ()
    is_float = value.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return is_float and value.layout == torch.strided and not value.is_quantized


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"tensor of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        names = ", ".join(map(repr, list(value)[:4]))
        return f"dict of {len(value)} entries ({names})" if value else "an empty dict"
    return type(value).__name__


@dataclass(frozen=True)
class LazyArray:
    """A tensor that is converted to float32 when numpy reads it as an array."""

    tensor: torch.Tensor  # tensor of 16 or 32 bits, possibly memory-mapped

    @property
    def shape(self) -> Shape:
        return tuple(self.tensor.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.tensor.float().numpy()
        return array if dtype is None else array.astype(dtype)
