"""Untrusted files: one error, exit code 2, nothing written, and no code run."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from credit_jax.models.conversion import key_map_for
from credit_jax.models.registry import build
from credit_torch_bridge.checkpoint.torch_checkpoint import open_checkpoint
from credit_torch_bridge.checkpoint.torch_files import load_file
from tests.bridge.checkpoint.untrusted import Creates
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.reference.training import GEN2_CONFIG
from tests.support.processes import run_program

CASES = Cases("torch_files")

CONFIG = yaml.safe_load(GEN2_CONFIG.read_text())
PLAN = key_map_for(build(CONFIG["model"]))


@pytest.fixture
def state(rng):
    """Returns a state dict that fits the model."""
    return {
        entry.key: torch.from_numpy(
            rng.normal(size=entry.arrangement.torch_shape(entry.shape)).astype("f4")
        )
        for entry in PLAN.entries
    }


def test_what_fits_is_converted(bridge, state, tmp_path):
    torch.save(state, tmp_path / "file.pt")
    given = "--config", GEN2_CONFIG, "--checkpoint", tmp_path / "file.pt"
    code, text = bridge("convert", "--to", "jax", *given, "--out", tmp_path / "out")
    assert code == 0, text
    assert "begins with these weights" in text
    assert (tmp_path / "out" / "checkpoints" / "0" / "weights").is_dir()
    config = yaml.safe_load((tmp_path / "out" / "model.yml").read_text())
    assert config["trainer"]["load_weights"] is True
    code, text = bridge("convert", "--to", "jax", *given, "--out", tmp_path / "out")
    assert code == 2
    assert "there is something already" in text


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("zipped", [False, True])
def test_code_is_named_and_not_run(assert_refused, state, tmp_path, wrapped, zipped):
    mark = tmp_path / "mark"
    content = state | {"extra": Creates(mark)}
    if wrapped:
        content = {"model_state_dict": state, "epoch": Creates(mark)}
    path = tmp_path / "file.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    assert_refused(path, "posix.system", "nothing of it was run")
    assert not mark.exists()


def test_a_plain_pickle_is_not_run(assert_refused, tmp_path):
    path = tmp_path / "file.pt"
    path.write_bytes(pickle.dumps(Creates(tmp_path / "mark")))
    assert_refused(path)
    assert not (tmp_path / "mark").exists()


def test_a_class_is_named(assert_refused, state, tmp_path):
    path = tmp_path / "file.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    assert_refused(path, "torch.nn.modules.linear.Linear")


def test_truncated_files(assert_refused, state, tmp_path):
    import safetensors.torch

    path = tmp_path / "file.pt"
    torch.save({"model_state_dict": state, "epoch": 0}, path)
    whole = path.read_bytes()
    for share in (0.0, 0.3, 0.9, 0.999):
        path.write_bytes(whole[: int(len(whole) * share)])
        assert_refused(path)
    path.unlink()
    path = tmp_path / "file.safetensors"
    safetensors.torch.save_file(state, path)
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) // 2):
        path.write_bytes(whole[:size])
        assert_refused(path)


def test_a_file_whose_zip_lies_about_its_storage(assert_refused, state, tmp_path):
    path = tmp_path / "file.pt"
    torch.save(state, path)
    with zipfile.ZipFile(path) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in entries.items():
            file.writestr(name, data[:4] if "/data/" in name else data)
    assert_refused(path)


HEADERS = {
    "huge": struct.pack("<Q", 2**62) + b"{}",
    "of 99 MB": struct.pack("<Q", 99_000_000) + b"{}",
    "no JSON": struct.pack("<Q", 8) + b"{{{{{{{{",
    "beyond the file": None,
}


@pytest.mark.parametrize("name", HEADERS)
def test_safetensors_headers(assert_refused, tmp_path, name):
    header = json.dumps(
        {"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    ).encode()
    data = HEADERS[name] or struct.pack("<Q", len(header)) + header
    (tmp_path / "file.safetensors").write_bytes(data)
    assert_refused(tmp_path / "file.safetensors", "not a whole safetensors file")


def _broken(state):
    key = "up_block4.2.bias"
    nan = state[key].clone()
    nan[1] = float("nan")
    one = torch.zeros(1)
    return {
        "a list": [1, 2],
        "a tensor": one,
        "empty": {},
        "not finite": state | {key: nan},
        "infinite": state | {key: nan.nan_to_num(nan=np.inf)},
        "integers": state | {key: state[key].int()},
        "float64": state | {key: state[key].double()},
        "no tensor": state | {key: 3.0},
        "number as key": state | {3: one},
        "sparse": state | {key: state[key].to_sparse()},
        "wrong shape": state | {key: one},
        "missing": {k: v for k, v in state.items() if k != key},
        "unexpected": state | {"more": one},
        "two models": state | {f"module.{k}": v for k, v in state.items()},
        "a huge view": state | {key: one.expand(2**40)},
        "wrong epoch": {"model_state_dict": state, "epoch": "two"},
        "wrong weights": {"model_state_dict": {"a": 1}},
        "wrong optimizer": {
            "model_state_dict": state,
            "optimizer_state_dict": {"state": 3},
        },
        "wrong schedule": {"model_state_dict": state, "scheduler_state_dict": [1]},
        "no weights": {"epoch": 1, "scheduler_state_dict": {}, "scaler_state_dict": {}},
        "old decoder": {
            k.replace("up_block4.0.weight_orig", "up_block4.weight_orig"): v
            for k, v in state.items()
        },
        "nextgen": state | {"level_embedding.bias": one},
        "no spectral norm": {
            k.replace("_orig", ""): v
            for k, v in state.items()
            if not k.endswith(("_u", "_v"))
        },
    }


def wrong(name, assert_refused, state, tmp_path, capsys):
    torch.save(_broken(state)[name], tmp_path / "file.pt")
    assert_refused(tmp_path / "file.pt")
    return capsys.readouterr().out


CASES.rows(wrong, *_broken({"up_block4.2.bias": torch.zeros(6)}))


def test_a_missing_file_and_an_empty_folder(assert_refused, tmp_path):
    assert_refused(tmp_path / "none.pt", "no such file or folder")
    (tmp_path / "empty").mkdir()
    assert_refused(tmp_path / "empty", "no checkpoint in it", "found nothing")


def flip_a_bit(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_bits_flipped_inside_of_weights(assert_refused, state, tmp_path):
    """PyTorch reads such a file without an error."""
    path = tmp_path / "file.pt"
    torch.save(state, path)
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
    flip_a_bit(path, largest.header_offset + largest.file_size // 2 + 200)
    torch.load(path, weights_only=True)
    assert_refused(path, str(path), "damaged", largest.filename)


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


def test_a_folder_of_torch_distributed(assert_refused, tmp_path):
    mark, folder = tmp_path / "mark", tmp_path / "folder"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps({"x": Creates(mark)}))
    assert_refused(folder, "dcp_to_torch_save")
    assert not mark.exists()


def test_a_converted_run_with_a_changed_file(bridge, state, tmp_path):
    torch.save(state, tmp_path / "file.pt")
    given = "--config", GEN2_CONFIG, "--checkpoint", tmp_path / "file.pt"
    code, text = bridge("convert", "--to", "jax", *given, "--out", tmp_path / "run")
    assert code == 0, text
    files = (tmp_path / "run" / "checkpoints" / "0" / "weights").rglob("d/*")
    largest = max(files, key=lambda path: path.stat().st_size)
    flip_a_bit(largest, largest.stat().st_size // 2)
    given = "--config", GEN2_CONFIG, "--checkpoint", tmp_path / "run"
    given = "convert", "--to", "torch", *given, "--out", tmp_path / "back"
    code, text = bridge(*given)
    assert code == 2
    assert f"{largest}: damaged, its bytes were changed" in text.replace("\n", "")
    assert not (tmp_path / "back").exists()
    flip_a_bit(largest, largest.stat().st_size // 2)
    manifest = tmp_path / "run" / "checkpoints" / "0" / "weights" / "_METADATA"
    manifest.write_text(manifest.read_text() + "\n")
    code, text = bridge(*given)
    assert code == 2, text
    code, text = bridge(*given, "--no-verify")
    assert code == 0, text


def test_a_folder_written_for_pytorch_with_a_changed_file(bridge, state, tmp_path):
    """Files that a run wrote after the conversion are not compared."""
    torch.save(state, tmp_path / "file.pt")
    given = "--config", GEN2_CONFIG, "--checkpoint", tmp_path / "file.pt"
    run, back = tmp_path / "run", tmp_path / "back"
    code, text = bridge("convert", "--to", "jax", *given, "--out", run)
    assert code == 0, text
    given = "--config", GEN2_CONFIG, "--checkpoint", run, "--out", back
    code, text = bridge("convert", "--to", "torch", *given)
    assert code == 0, text
    names = {path.name for path in back.iterdir()}
    assert set(json.loads((back / "digests.json").read_text())) == names - {
        "digests.json"
    }
    log = back / "model.yml"
    before = log.stat().st_mtime
    log.write_text(log.read_text() + "\n# changed\n")
    os.utime(log, (before, before))
    with pytest.raises(ValueError, match=r"model\.yml: damaged.*--no-verify"):
        open_checkpoint(back)
    assert set(open_checkpoint(back, verify=False).model) == set(state)
    os.utime(log, (before + 60, before + 60))
    assert set(open_checkpoint(back / "checkpoint.pt").model) == set(state)


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    "seeds",
    [(0, 10), (10, 130)],
    ids=["short", "long"],
)
def test_mutations(tmp_path: Path, seeds: tuple[int, int]) -> None:
    program = "tests.bridge.checkpoint.fuzz"
    print(run_program(program, str(tmp_path), *map(str, seeds)))
