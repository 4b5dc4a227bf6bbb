"""Untrusted files: one error, exit code 2, nothing written, and no code run."""

import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import safetensors.torch
import torch

from credit_jax.config.yaml_file import read_yaml
from credit_jax.models.conversion import key_map_for
from credit_torch_bridge.__main__ import main
from credit_torch_bridge.checkpoint.torch_checkpoint import load_file, open_checkpoint
from tests.bridge.checkpoint.formats import Creates
from tests.bridge.runs import MODEL_DEF
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.reference.training import GEN2_CONFIG
from tests.support.processes import run_program

CASES = Cases("torch_files")
CONFIG = "--config", GEN2_CONFIG
KEY = "up_block4.2.bias"
ONE = torch.zeros(1)


@pytest.fixture(scope="module")
def state():
    """A state dict that fits the model; tests must not change it."""
    rng = np.random.default_rng(0)
    return {
        entry.key: torch.from_numpy(
            rng.normal(size=entry.arrangement.torch_shape(entry.shape)).astype("f4")
        )
        for entry in key_map_for(MODEL_DEF).entries
    }


def filled(value):
    """Another value of one weight."""

    def change(state):
        bias = state[KEY].clone()
        bias[1] = value
        return {KEY: bias}

    return change


def of_key(change):
    return lambda state: {KEY: change(state[KEY])}


# Contents of files: what is added to the state, or what takes its place.
ADDED = {
    "not finite": filled(np.nan),
    "infinite": filled(np.inf),
    "integers": of_key(torch.Tensor.int),
    "float64": of_key(torch.Tensor.double),
    "no tensor": of_key(lambda bias: 3.0),
    "number as key": lambda state: {3: ONE},
    "sparse": of_key(torch.Tensor.to_sparse),
    "wrong shape": of_key(lambda bias: ONE),
    "unexpected": lambda state: {"more": ONE},
    "two models": lambda state: {f"module.{k}": v for k, v in state.items()},
    "a huge view": of_key(lambda bias: ONE.expand(2**40)),
    "nextgen": lambda state: {"level_embedding.bias": ONE},
}
OTHERS = {
    "a list": lambda state: [1, 2],
    "a tensor": lambda state: ONE,
    "empty": lambda state: {},
    "missing": lambda state: {k: v for k, v in state.items() if k != KEY},
    "wrong epoch": lambda state: {"model_state_dict": state, "epoch": "two"},
    "wrong weights": lambda state: {"model_state_dict": {"a": 1}},
    "wrong optimizer": lambda state: (
        {"model_state_dict": state} | {"optimizer_state_dict": {"state": 3}}
    ),
    "wrong schedule": lambda state: (
        {"model_state_dict": state} | {"scheduler_state_dict": [1]}
    ),
    "no weights": lambda state: (
        {"epoch": 1} | {"scheduler_state_dict": {}, "scaler_state_dict": {}}
    ),
    "old decoder": lambda state: {
        k.replace("up_block4.0.weight_orig", "up_block4.weight_orig"): v
        for k, v in state.items()
    },
    "no spectral norm": lambda state: {
        k.replace("_orig", ""): v
        for k, v in state.items()
        if not k.endswith(("_u", "_v"))
    },
    "a class": lambda state: torch.nn.Linear(2, 2),
}


def converted(path, tmp_path):
    words = "convert", "--to", "jax", *CONFIG, "--checkpoint", path, "--out"
    return lambda: main([*map(str, words), str(tmp_path / "out")])


def wrong(name, state, tmp_path):
    add = ADDED.get(name)
    content = state | add(state) if add else OTHERS[name](state)
    torch.save(content, tmp_path / "file.pt")
    return converted(tmp_path / "file.pt", tmp_path)


CASES.rows(wrong, *ADDED, *OTHERS)


def code(state, tmp_path, wrapped=False, zipped=False):
    creates = Creates(tmp_path / "mark")
    content = {"model_state_dict": state, "epoch": creates}
    content = content if wrapped else state | {"extra": creates}
    path = tmp_path / "file.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return converted(path, tmp_path)


CASES.rows(
    code,
    {"zipped": False, "wrapped": False},
    {"zipped": True, "wrapped": False},
    {"zipped": False, "wrapped": True},
    {"zipped": True, "wrapped": True},
    name="code",
)
HEADER = {"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
BEYOND = json.dumps(HEADER).encode()
BYTES = {
    "a plain pickle.pt": lambda mark: pickle.dumps(Creates(mark)),
    "huge.safetensors": lambda mark: struct.pack("<Q", 2**62) + b"{}",
    "of 99 MB.safetensors": lambda mark: struct.pack("<Q", 99_000_000) + b"{}",
    "no JSON.safetensors": lambda mark: struct.pack("<Q", 8) + b"{{{{{{{{",
    "beyond.safetensors": lambda mark: struct.pack("<Q", len(BEYOND)) + BEYOND,
}


def of_bytes(name, tmp_path):
    (tmp_path / name).write_bytes(BYTES[name](tmp_path / "mark"))
    return converted(tmp_path / name, tmp_path)


CASES.rows(of_bytes, *BYTES)


def truncated(name, size, state, tmp_path):
    path = tmp_path / name
    torch.save({"model_state_dict": state, "epoch": 0}, path)
    if name.endswith("safetensors"):
        safetensors.torch.save_file(state, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(size if size > 1 else size * len(whole))])
    return converted(path, tmp_path)


CASES.rows(truncated, *(("file.pt", share) for share in (0.0, 0.3, 0.9, 0.999)))
CASES.rows(truncated, *(("file.safetensors", size) for size in (0, 4, 100, 0.5)))


@CASES.case
def a_zip_that_lies_about_its_storage(state, tmp_path):
    path = tmp_path / "file.pt"
    torch.save(state, path)
    with zipfile.ZipFile(path) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in entries.items():
            file.writestr(name, data[:4] if "/data/" in name else data)
    return converted(path, tmp_path)


@CASES.case
def a_missing_file(tmp_path):
    return converted(tmp_path / "none.pt", tmp_path)


@CASES.case
def an_empty_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    return converted(tmp_path / "empty", tmp_path)


@CASES.case
def a_folder_of_torch_distributed(tmp_path):
    (tmp_path / "folder").mkdir()
    metadata = pickle.dumps({"x": Creates(tmp_path / "mark")})
    (tmp_path / "folder" / ".metadata").write_bytes(metadata)
    return converted(tmp_path / "folder", tmp_path)


def flip_a_bit(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@CASES.case
def bits_flipped_inside_of_weights(state, tmp_path):
    """PyTorch reads such a file without an error."""
    path = tmp_path / "file.pt"
    torch.save(state, path)
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
    flip_a_bit(path, largest.header_offset + largest.file_size // 2 + 200)
    torch.load(path, weights_only=True)
    return converted(path, tmp_path)


def test_a_file_that_was_saved_without_checksums(state, tmp_path):
    path = tmp_path / "file.pt"
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, path)
    finally:
        torch.serialization.set_crc32_options(before)
    with pytest.raises(ValueError, match=r"checksum.*--no-verify.*set_crc32_options"):
        load_file(path)
    found = load_file(path, verify=False)
    assert all(torch.equal(found[key], state[key]) for key in state)


def test_what_fits_is_converted_and_what_is_changed_after_that_is_refused(
    bridge, state, tmp_path
):
    torch.save(state, tmp_path / "file.pt")
    run, back = tmp_path / "run", tmp_path / "back"
    to_jax = "jax", tmp_path / "file.pt", run, *CONFIG
    bridge.convert(*to_jax, says="begins with these weights")
    weights = run / "checkpoints" / "0" / "weights"
    assert read_yaml(run / "model.yml")["trainer"]["load_weights"] is True
    words = "convert", "--to", "jax", *CONFIG, "--checkpoint", tmp_path / "file.pt"
    bridge(*words, "--out", run, code=2, says="there is something already")

    to_torch = "torch", run, back, *CONFIG
    largest = max(weights.rglob("d/*"), key=lambda path: path.stat().st_size)
    flip_a_bit(largest, largest.stat().st_size // 2)
    text = bridge.convert(*to_torch, code=2)
    assert f"{largest}: damaged, its bytes were changed" in text.replace("\n", "")
    flip_a_bit(largest, largest.stat().st_size // 2)
    bridge.convert(*to_torch)

    # Of the folder for PyTorch: files that a run wrote later are not compared.
    names = {path.name for path in back.iterdir()}
    digests = json.loads((back / "digests.json").read_text())
    assert set(digests) == names - {"digests.json"}
    log = back / "model.yml"
    before = log.stat().st_mtime
    log.write_text(log.read_text() + "\n# changed\n")
    os.utime(log, (before, before))
    with pytest.raises(ValueError, match=r"model\.yml: damaged.*--no-verify"):
        open_checkpoint(back)
    assert set(open_checkpoint(back, verify=False).model) == set(state)
    os.utime(log, (before + 60, before + 60))
    assert set(open_checkpoint(back / "checkpoint.pt").model) == set(state)

    metadata = weights / "_METADATA"
    metadata.write_text(metadata.read_text() + "\n")
    to_torch = "torch", run, tmp_path / "again", *CONFIG
    bridge.convert(*to_torch, code=2)
    bridge.convert(*to_torch, "--no-verify")


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("seeds", [(0, 10), (10, 130)], ids=["short", "long"])
def test_mutations(tmp_path, seeds):
    program = "tests.bridge.checkpoint.fuzz"
    print(run_program(program, str(tmp_path), *map(str, seeds)))
