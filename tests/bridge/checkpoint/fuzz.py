"""Seeded mutations of checkpoints through `convert`, and of runs through `restore`.

A program: `python -m tests.bridge.checkpoint.fuzz FOLDER FIRST STOP` tries the seeds
from FIRST to STOP and exits with code 1 at the first that ends neither with a
conversion nor with one error. Checkpoints are in each format that CREDIT writes, also
in the older layout of NextGen WXFormer and with a config of generation 1. In half of
the mutated runs the digests are those of the changed files.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import safetensors.torch
import torch
import yaml

from credit_jax import ParallelDims, restore
from credit_jax.checkpoint.store import DIGESTS
from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.io.digests import record_files, write_records
from credit_jax.models.conversion import key_map_for
from credit_jax.models.registry import build
from credit_torch_bridge.__main__ import main
from tests.bridge.checkpoint.formats import Creates, with_convolutions
from tests.bridge.runs import CONFIG
from tests.models.cases import NEXTGEN
from tests.support import mutations

# Uncompressed size in bytes of a zip member of zeros.
BOMB = 512 * 2**20


# Files of torch.save, whose content can be mutated, not only their bytes.
SAVED = ("zip", "legacy", "nextgen", "gen1")
KINDS = ("zip", *SAVED, "safetensors", "run", "run")


def model_of(kind: str) -> dict[str, Any]:
    """Returns the model of a kind of source."""
    return NEXTGEN["levels"].block if kind == "nextgen" else CONFIG["model"]


def whole_state(kind: str) -> dict[str, torch.Tensor]:
    """Returns a state dict that fits the model of a kind of source."""
    generator = torch.Generator().manual_seed(0)
    state = {
        entry.key: torch.randn(
            entry.arrangement.torch_shape(entry.shape), generator=generator
        )
        for entry in key_map_for(build(model_of(kind))).entries
    }
    return with_convolutions(state) if kind == "nextgen" else state


def write_config(kind: str, path: Path) -> None:
    """Writes the YAML of a kind of source."""
    old = {"trainer": {"type": "era5", "mode": "ddp"}, "data": {}, "save_loc": "."}
    config = old if kind == "gen1" else CONFIG
    path.write_text(yaml.safe_dump(config | {"model": model_of(kind)}))


def write_sources(folder: Path) -> None:
    """Writes one whole checkpoint of each kind, and a run converted from one.

    The config of each is `KIND.yml` in the same folder.
    """
    folder.mkdir(parents=True)
    for kind in dict.fromkeys(KINDS):
        write_config(kind, folder / f"{kind}.yml")
    for kind in SAVED:
        (folder / kind).mkdir()
        content = {"model_state_dict": whole_state(kind), "epoch": 0}
        path = folder / kind / "checkpoint.pt"
        torch.save(content, path, _use_new_zipfile_serialization=kind != "legacy")
    (folder / "safetensors").mkdir()
    state = whole_state("safetensors")
    safetensors.torch.save_file(state, folder / "safetensors" / "model.safetensors")
    for kind in dict.fromkeys(KINDS):
        out = folder / ("run" if kind == "zip" else f"{kind}_converted")
        if kind != "run":
            code, text = convert(kind, folder / f"{kind}.yml", folder / kind, out)
            assert code == OK, text


def convert(kind: str, config: Path, source: Path, out: Path) -> tuple[int, str]:
    """Runs `convert` on a kind of source; returns its exit code and its output."""
    seen = io.StringIO()
    words = ["--to", "torch" if kind == "run" else "jax", "--config", config]
    words += ["--checkpoint", source, "--out", out]
    words += ["--weights-only"] if kind == "gen1" else []
    with contextlib.redirect_stdout(seen), contextlib.redirect_stderr(seen):
        return main(["convert", *map(str, words)]), seen.getvalue()


def restored(folder: Path) -> str:
    """The outcome of `restore` of a run on one device."""
    mesh = ParallelDims(world_size=1).build_mesh(jax.devices()[:1])
    try:
        restore(folder, mesh)
    except (ValueError, OSError):
        return "refused"
    return "converted"


def change_bytes(folder: Path, chosen: random.Random) -> None:
    """Changes a file of a checkpoint, or removes it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = chosen.choice(files)
    if chosen.random() < 0.05:
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    path.write_bytes(mutations.changed_bytes(data, chosen))


def _value(tensor: torch.Tensor, chosen: random.Random, mark: Path) -> Any:
    """Returns another value for a tensor."""
    values: list[Callable[[], Any]] = [
        lambda: tensor.double(),
        lambda: tensor.half(),
        lambda: tensor.to(torch.int64),
        lambda: tensor.to(torch.complex64),
        lambda: tensor.reshape(-1),
        lambda: tensor[None],
        lambda: tensor[:0],
        lambda: torch.zeros(1).expand(2**40),
        lambda: torch.full_like(tensor, float("nan")),
        lambda: tensor.to_sparse(),
        lambda: torch.empty(tensor.shape, device="meta"),
        lambda: [tensor],
        lambda: {"a": {"b": tensor}},
        lambda: None,
        lambda: "x" * 10_000,
        lambda: 10**400,
        lambda: Creates(mark),
        lambda: torch.nn.Linear(2, 2),
    ]
    return chosen.choice(values)()


def _key(chosen: random.Random) -> Any:
    keys = ["", "../../x", "/etc/x", "a\0b", "module.", "näme\u202e", 3, None, 1.5]
    return chosen.choice([*keys, "x" * 10_000])


def changed_content(
    state: dict[str, torch.Tensor], chosen: random.Random, mark: Path
) -> Any:
    """Returns a checkpoint with one to three changed values, keys or entries."""
    state = dict(state)
    content: Any = {"model_state_dict": state, "epoch": 0}
    for _ in range(chosen.randint(1, 3)):
        key = chosen.choice(list(state))
        how = chosen.choice(["value", "value", "remove", "key", "entry"])
        if how == "remove":
            del state[key]
        elif how == "key":
            state[_key(chosen)] = state.pop(key)
        elif how == "value" and isinstance(state[key], torch.Tensor):
            state[key] = _value(state[key], chosen, mark)
        else:
            names = ("epoch", "optimizer_state_dict", "scheduler_state_dict", "more")
            content[chosen.choice(names)] = _value(torch.ones(2), chosen, mark)
    return content if chosen.random() < 0.8 else state


def write_bomb(path: Path) -> None:
    """Writes a torch.save file whose largest member unpacks to half a gigabyte."""
    with zipfile.ZipFile(path) as file:
        entries = {info.filename: file.read(info) for info in file.infolist()}
    largest = max(entries, key=lambda name: len(entries[name]))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries.items():
            if name != largest:
                file.writestr(name, data)
        with file.open(largest, "w") as member:
            for _ in range(BOMB // 2**20):
                member.write(bytes(2**20))


def change_content(
    folder: Path, chosen: random.Random, state: dict[str, torch.Tensor], mark: Path
) -> None:
    """Writes changed content, links, names outside of the folder, or a zip bomb."""
    path = folder / "checkpoint.pt"
    of_zips = ["names", "bomb"] if zipfile.is_zipfile(path) else []
    how = chosen.choice(["content"] * 30 + ["link", "folder", *of_zips])
    if how == "content":
        new = bool(chosen.getrandbits(1))
        content = changed_content(state, chosen, mark)
        try:
            torch.save(content, path, _use_new_zipfile_serialization=new)
        except (RuntimeError, NotImplementedError):  # cannot be saved at all
            path.write_bytes(b"")
    elif how == "link":
        path.unlink()
        path.symlink_to(chosen.choice(["/etc/passwd", "/dev/zero", path, "nowhere"]))
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "names":
        with zipfile.ZipFile(path, "a") as file:
            file.writestr(chosen.choice(["../../x", "/etc/x", "data.pkl"]), b"x")
    else:
        write_bomb(path)


def change_run(folder: Path, chosen: random.Random) -> None:
    """Changes a file of a run, and in most cases its digests."""
    if chosen.random() < 0.5:
        files = sorted(folder.rglob("*.json"))
        files += sorted(path for path in folder.rglob("_*METADATA") if path.is_file())
        path = chosen.choice(files)
        path.write_text(mutations.changed_json(path.read_text(), chosen))
    else:
        change_bytes(folder, chosen)
    if chosen.random() < 0.5:
        for path in folder.rglob(DIGESTS):
            path.unlink()
            write_records(path, record_files(path.parent))


def try_seed(seed: int, sources: Path, folder: Path) -> tuple[str, str]:
    """Returns (kind, outcome): "converted", "refused", or the failure."""
    chosen = random.Random(seed)
    work, out, mark = folder / "work", folder / "out", folder / "mark"
    for path in (work, out):
        shutil.rmtree(path, ignore_errors=True)
    kind = chosen.choice(KINDS)
    shutil.copytree(sources / kind, work)
    if kind in SAVED and chosen.random() < 0.6:
        change_content(work, chosen, whole_state(kind), mark)
    elif kind == "run":
        change_run(work, chosen)
    else:
        change_bytes(work, chosen)
    restores = kind == "run" and chosen.random() < 0.5

    def read() -> str:
        if restores:
            return restored(work)
        code, text = convert(kind, sources / f"{kind}.yml", work, out)
        if code == OK:
            return "converted"
        is_one = text.count("error: ") == 1 and "Traceback" not in text
        is_refused = code == USER_ERROR and is_one and not out.exists()
        return "refused" if is_refused else f"exit code {code}: {text[-2000:]}"

    return "run, restored" if restores else kind, mutations.trial(
        read, folder, out.name
    )


def try_seeds(folder: Path, seeds: range) -> Iterator[tuple[int, str, str]]:
    """Yields (seed, kind, outcome) for each seed; checkpoints are below a folder."""
    warnings.simplefilter("ignore")
    sources, place = folder / "sources", folder / "place"
    write_sources(sources)
    place.mkdir()
    return mutations.try_all(seeds, partial(try_seed, sources=sources, folder=place))


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    seeds = range(*map(int, sys.argv[2:]))
    trials = try_seeds(Path(sys.argv[1]), seeds)
    sys.exit(mutations.count_outcomes(trials, "converted", "refused"))
