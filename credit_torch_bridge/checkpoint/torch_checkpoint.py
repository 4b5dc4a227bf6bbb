"""Reads PyTorch checkpoints of any format; arrays keep the names of the file.

`torch.load(weights_only=True)` is the only loader: a file with more than tensors and
plain values, which would run code, is refused. Files are memory-mapped.
"""

from __future__ import annotations

import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from credit_jax.checkpoint.store import DIGESTS
from credit_jax.io.digests import find_damage
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


Load = Callable[[Path], Any]

CHECKPOINT, FSDP1_MODEL = "checkpoint.pt", "model_checkpoint.pt"
FSDP1_OPTIMIZER = "optimizer_checkpoint.pt"
_MODEL = ("model_state_dict", "model", "state_dict")
_OPTIMIZER = ("optimizer_state_dict", "optimizer", "optim")
_SCHEDULER, _SCALER = "scheduler_state_dict", "scaler_state_dict"
_STATISTICS = (".running_mean", ".running_var", f".{COUNT_NAME}")
_SHADOW = "shadow"


@dataclass(frozen=True)
class Average:
    """The moving average of a checkpoint."""

    shadow: dict[str, torch.Tensor]  # averaged parameters by name
    decay: float  # upper limit of the decay
    step: int  # number of updates averaged
    epoch: int | None = None  # epoch of its file, or None


@dataclass(frozen=True)
class TorchCheckpoint:
    """The contents of a checkpoint.

    Attributes:
        path: the file or folder.
        format: description of the format.
        model: all arrays of the model's state dict, by name.
        epoch: the last epoch finished; None if the file has none.
        optimizer: {"state", "param_groups"} or None.
        scheduler: state of the learning-rate schedule or None.
        scaler: state of the loss scaling; empty if there is none.
        average: the moving average or None.
        notes: notes for the user.
    """

    path: Path
    format: str
    model: dict[str, torch.Tensor]
    epoch: int | None = None
    optimizer: Mapping[str, Any] | None = None
    scheduler: Mapping[str, Any] | None = None
    scaler: Mapping[str, Any] | None = None
    average: Average | None = None
    notes: tuple[str, ...] = ()


def open_checkpoint(path: str | Path, *, verify: bool = True) -> TorchCheckpoint:
    """Opens a checkpoint with memory-mapped tensors.

    Args:
        path: a file of torch.save or safetensors, or the folder of a run of CREDIT (its
            `save_loc`).
        verify: compare tensors with their checksums, and the files that `convert` wrote
            with their digests.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: it is broken, needs code to be loaded, or is of an unknown format.
    """
    path = Path(path)
    load = partial(load_file, verify=verify)
    if verify:
        # Compares files with the digests that `convert` wrote next to them. Raises:
        # ValueError: a file was damaged.
        folder = path if path.is_dir() else path.parent
        if damage := find_damage(folder / DIGESTS, or_newer=True):
            raise ValueError(
                "; ".join(damage)
                + "; convert or copy it again, or read it as it is with "
                "--no-verify"
            )
    if path.is_dir():
        return _open_folder(path, load)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    checkpoint = _open_file(path, load)
    if checkpoint.average is not None and not checkpoint.model:
        return _average_as_model(checkpoint, load)
    return _with_average(checkpoint, path, load)


def _open_folder(folder: Path, load: Load) -> TorchCheckpoint:
    main, model = folder / CHECKPOINT, folder / FSDP1_MODEL
    if main.is_file():
        content = load(main)
        has_model = isinstance(content, Mapping) and _find(content, _MODEL) is not None
        if model.is_file() and not has_model:
            return _from_fsdp1(folder, content, load)
        return _with_average(_from_content(content, main, ""), main, load)
    if model.is_file():
        return _from_fsdp1(folder, {}, load)
    tensors = sorted(folder.glob(f"*{SAFETENSORS}"))
    if tensors:
        # One state dict from all of them.
        state: dict[str, Any] = {}
        for path in tensors:
            part = load(path)
            twice = sorted(set(part) & set(state))
            if twice:
                raise ValueError(
                    f"{folder}: {twice[0]!r} is in several of {len(tensors)} files; "
                    "give the file that is meant"
                )
            state |= part
        return _from_content(state, folder, f"safetensors, {len(tensors)} file(s)")
    if (folder / "checkpoints").is_dir():
        raise ValueError(
            f"{folder}: a run of credit_jax, not of CREDIT; convert it with --to torch"
        )
    if (folder / ".metadata").is_file():
        raise ValueError(
            f"{folder}: of torch.distributed.checkpoint, whose index only an unpickler "
            "reads; if you trust it, make it one file with dcp_to_torch_save of "
            "torch.distributed.checkpoint.format_utils"
        )
    names = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
    raise FileNotFoundError(
        f"{folder}: no checkpoint in it; looked for {CHECKPOINT}, {FSDP1_MODEL} and "
        f"*{SAFETENSORS}, found {names}"
    )


def _open_file(path: Path, load: Load) -> TorchCheckpoint:
    content = load(path)
    kind = "safetensors" if path.suffix == SAFETENSORS else ""
    return _from_content(content, path, kind)


def _from_fsdp1(
    folder: Path, remainder: Mapping[str, Any], load: Load
) -> TorchCheckpoint:
    """The three files of a run with `trainer.mode: fsdp`."""
    model = folder / FSDP1_MODEL
    checkpoint = _from_content(load(model), model, "files of an FSDP (gen1) run")
    if not isinstance(remainder, Mapping):
        raise ValueError(
            f"{folder / CHECKPOINT}: expected a dict, got {type(remainder)}"
        )
    optimizer = folder / FSDP1_OPTIMIZER
    state = load(optimizer) if optimizer.is_file() else None
    checkpoint = replace(checkpoint, **_progress_of(remainder, folder / CHECKPOINT))
    return _with_average(
        replace(checkpoint, optimizer=state), folder / CHECKPOINT, load
    )


def _from_content(content: Any, path: Path, kind: str) -> TorchCheckpoint:
    """The checkpoint in a loaded object."""
    if not isinstance(content, Mapping):
        raise ValueError(
            f"{path}: expected a dict of state dicts, or a state dict, got "
            f"{type(content).__name__}"
        )
    model = _find(content, _MODEL)
    if model is None and len(content) == 1:
        inner = next(iter(content.values()))
        if isinstance(inner, Mapping):
            return _from_content(inner, path, kind)
    if model is None:
        subject = f"{path}: no {_MODEL[0]} in it, and taken as a bare state dict"
        state = as_tensors(content, subject)
        return TorchCheckpoint(path, kind or "bare state dict", state)
    progress = _progress_of(content, path)
    if isinstance(model, Mapping) and _SHADOW in model:
        # Reads the nested dict of an EMA file. Averaged vectors of spectral norm, in
        # files of older versions of CREDIT, are not unit vectors and are omitted, as by
        # CREDIT.
        epoch = progress["epoch"]
        shadow = as_tensors(model[_SHADOW], f"{path}: the average")
        averaged = {
            key: value
            for key, value in shadow.items()
            if not (key.endswith(("_u", "_v")) and f"{key[:-2]}_orig" in shadow)
        }
        decay, step = model.get("decay", 0.9999), model.get("step", 0)
        if not (isinstance(decay, float | int) and isinstance(step, int) and step >= 0):
            raise ValueError(
                f"{path}: decay {decay!r} and step {step!r} are no numbers"
            )
        average = Average(averaged, float(decay), step, epoch)
        return TorchCheckpoint(path, kind or "average", {}, average=average)
    optimizer = _find(content, _OPTIMIZER)
    if optimizer is None:
        form = "checkpoint without an optimizer"
    else:
        groups = optimizer.get("param_groups")
        is_list = isinstance(groups, list) and groups
        keys = groups[0].get("params", []) if is_list else []
        by_name = bool(keys) and isinstance(keys[0], str)
        form = "checkpoint of fsdp2" if by_name else "checkpoint of none or ddp"
    return TorchCheckpoint(
        path,
        kind or form,
        as_tensors(model, f"{path}: {_MODEL[0]}"),
        optimizer=optimizer,
        **progress,
    )


def _find(content: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The first of several entries that is a dict."""
    entries = [content[name] for name in names if name in content]
    return next((value for value in entries if isinstance(value, Mapping)), None)


def _progress_of(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Epoch, schedule and scaling of a checkpoint, checked."""
    epoch = content.get("epoch")
    if isinstance(epoch, torch.Tensor) and epoch.numel() == 1:
        epoch = int(epoch)
    # -1 means that no epoch is finished.
    if not (epoch is None or (isinstance(epoch, int) and epoch >= -1)):
        raise ValueError(f"{path}: epoch is {epoch!r}, expected a number from 0 on")
    progress = {"epoch": epoch}
    for field, name in (("scheduler", _SCHEDULER), ("scaler", _SCALER)):
        progress[field] = state = content.get(name)
        if not (state is None or isinstance(state, Mapping)):
            raise ValueError(
                f"{path}: {name} is a {type(state).__name__}, expected a dict"
            )
    return progress


def _with_average(
    checkpoint: TorchCheckpoint, path: Path, load: Load
) -> TorchCheckpoint:
    beside = path.with_name(f"{path.stem}_ema{path.suffix}")
    if path.suffix == SAFETENSORS or not beside.is_file():
        return checkpoint
    average = _open_file(beside, load).average
    if average is None:
        raise ValueError(f"{beside}: expected an average (model_state_dict.shadow)")
    notes, epochs = checkpoint.notes, {average.epoch, checkpoint.epoch} - {None}
    if len(epochs) > 1:
        notes += (
            f"{beside.name} is of epoch {average.epoch}, {path.name} of epoch "
            f"{checkpoint.epoch}; both are taken, as CREDIT takes them",
        )
    return replace(checkpoint, average=average, notes=notes)


def _average_as_model(checkpoint: TorchCheckpoint, load: Load) -> TorchCheckpoint:
    """Completes an EMA file with the vectors and statistics of its checkpoint."""
    assert checkpoint.average is not None, "asked for by the caller"
    shadow, path = checkpoint.average.shadow, checkpoint.path
    needs = any(key.endswith("_orig") for key in shadow)
    stem = path.stem.removesuffix("_ema")
    live = path.with_name(f"{stem}{path.suffix}")
    vectors: dict[str, torch.Tensor] = {}
    if needs and (stem == path.stem or not live.is_file()):
        raise ValueError(
            f"{path}: an average has no vectors of spectral norm (weight_u, weight_v); "
            f"they are in the checkpoint beside it, and {live.name} is not there"
        )
    if needs:
        model = _open_file(live, load).model
        lacking = {k: v for k, v in model.items() if k not in shadow}
        vectors = {k: v for k, v in model.items() if k.endswith(("_u", "_v"))}
        vectors |= {k: v for k, v in lacking.items() if k.endswith(_STATISTICS)}
    return replace(
        checkpoint,
        format="average, with the vectors of the checkpoint beside it",
        model={**shadow, **vectors},
        epoch=checkpoint.average.epoch,
        average=None,
    )
