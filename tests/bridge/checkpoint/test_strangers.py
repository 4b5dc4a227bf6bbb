"""Files from strangers: one error, exit code 2, nothing written, and nothing run."""

import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
import yaml

from credit_jax.models.registry import build
from credit_torch_bridge.checkpoint.safe_pickle import read_pickle
from credit_torch_bridge.checkpoint.state_dict import key_plan_for
from credit_torch_bridge.checkpoint.torch_distributed import ALLOWED, load_folder
from tests.reference.training import GEN2_CONFIG

CONFIG = yaml.safe_load(GEN2_CONFIG.read_text())
PLAN = key_plan_for(build(CONFIG["model"]))


class Creates:
    """Unpickling it creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def state(rng):
    """A state dict that fits the model."""
    return {
        entry.key: torch.from_numpy(
            rng.normal(size=entry.arrangement.torch_shape(entry.shape)).astype("f4")
        )
        for entry in PLAN.entries
    }


@pytest.fixture
def convert(bridge, tmp_path):
    """Converts a file; asserts that it fails in one way and leaves nothing behind."""

    def fails(path, *words):
        config = tmp_path / "config.yml"
        config.write_text(yaml.safe_dump(CONFIG))
        before = sorted(tmp_path.iterdir())
        given = "--config", config, "--checkpoint", path, "--out", tmp_path / "out"
        code, text = bridge("convert", "--to", "jax", *given)
        print(text)
        assert code == 2, text
        assert text.count("error: ") == 1, text
        for word in words:
            assert word in text
        assert sorted(tmp_path.iterdir()) == before, "something was left behind"

    return fails


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
def test_code_is_named_and_not_run(convert, state, tmp_path, wrapped, zipped):
    mark = tmp_path / "mark"
    content = state | {"extra": Creates(mark)}
    if wrapped:
        content = {"model_state_dict": state, "epoch": Creates(mark)}
    path = tmp_path / "file.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    convert(path, "posix.system", "nothing of it was run")
    assert not mark.exists()


def test_a_plain_pickle_is_not_run(convert, tmp_path):
    path = tmp_path / "file.pt"
    path.write_bytes(pickle.dumps(Creates(tmp_path / "mark")))
    convert(path)
    assert not (tmp_path / "mark").exists()


def test_a_class_is_named(convert, state, tmp_path):
    path = tmp_path / "file.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    convert(path, "torch.nn.modules.linear.Linear")


def test_truncated_files(convert, state, tmp_path):
    import safetensors.torch

    path = tmp_path / "file.pt"
    torch.save({"model_state_dict": state, "epoch": 0}, path)
    whole = path.read_bytes()
    for share in (0.0, 0.3, 0.9, 0.999):
        path.write_bytes(whole[: int(len(whole) * share)])
        convert(path)
    path.unlink()
    path = tmp_path / "file.safetensors"
    safetensors.torch.save_file(state, path)
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) // 2):
        path.write_bytes(whole[:size])
        convert(path)


def test_a_file_whose_zip_lies_about_its_storage(convert, state, tmp_path):
    path = tmp_path / "file.pt"
    torch.save(state, path)
    with zipfile.ZipFile(path) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in entries.items():
            file.writestr(name, data[:4] if "/data/" in name else data)
    convert(path)


HEADERS = {
    "huge": struct.pack("<Q", 2**62) + b"{}",
    "of 99 MB": struct.pack("<Q", 99_000_000) + b"{}",
    "no JSON": struct.pack("<Q", 8) + b"{{{{{{{{",
    "beyond the file": None,
}


@pytest.mark.parametrize("name", HEADERS)
def test_safetensors_headers(convert, tmp_path, name):
    header = json.dumps(
        {"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    ).encode()
    data = HEADERS[name] or struct.pack("<Q", len(header)) + header
    (tmp_path / "file.safetensors").write_bytes(data)
    convert(tmp_path / "file.safetensors", "not a whole safetensors file")


def _broken(state):
    key = "up_block4.2.bias"
    nan = state[key].clone()
    nan[1] = float("nan")
    one = torch.zeros(1)
    return {
        "a list": ([1, 2], "expected a dict"),
        "a tensor": (one, "expected a dict"),
        "empty": ({}, "expected a state dict"),
        "not finite": (state | {key: nan}, f"not finite: {key} (6,)"),
        "infinite": (state | {key: nan.nan_to_num(nan=np.inf)}, "not finite"),
        "integers": (state | {key: state[key].int()}, f"'{key}': tensor of int32"),
        "float64": (state | {key: state[key].double()}, "tensor of float64"),
        "no tensor": (state | {key: 3.0}, f"'{key}': float"),
        "number as key": (state | {3: one}, "3: tensor of float32"),
        "sparse": (state | {key: state[key].to_sparse()}, key),
        "wrong shape": (state | {key: one}, f"shape: {key} is (1,), expected (6,)"),
        "missing": ({k: v for k, v in state.items() if k != key}, f"missing: {key}"),
        "unexpected": (state | {"more": one}, "unexpected: more (1,)"),
        "two models": (
            state | {f"module.{k}": v for k, v in state.items()},
            "the file holds two models",
        ),
        "a huge view": (
            state | {key: one.expand(2**40)},
            f"{key} is (1099511627776,), expected (6,)",
        ),
        "wrong epoch": ({"model_state_dict": state, "epoch": "two"}, "epoch is 'two'"),
        "wrong weights": ({"model_state_dict": {"a": 1}}, "'a': int"),
        "wrong optimizer": (
            {"model_state_dict": state, "optimizer_state_dict": {"state": 3}},
            "optimizer: expected a dict of state and param_groups",
        ),
        "wrong schedule": (
            {"model_state_dict": state, "scheduler_state_dict": [1]},
            "scheduler_state_dict is a list",
        ),
        "no weights": (
            {"epoch": 1, "scheduler_state_dict": {}, "scaler_state_dict": {}},
            "not floating-point tensors",
        ),
        "old decoder": (
            {
                k.replace("up_block4.0.weight_orig", "up_block4.weight_orig"): v
                for k, v in state.items()
            },
            "write model.type: crossformer",
        ),
        "nextgen": (
            state | {"level_embedding.bias": one},
            "weights of a nextgen_wxformer, in the older layout with convolutions",
        ),
        "no spectral norm": (
            {
                k.replace("_orig", ""): v
                for k, v in state.items()
                if not k.endswith(("_u", "_v"))
            },
            "model.use_spectral_norm: false may be what it is",
        ),
    }


BROKEN = list(_broken({"up_block4.2.bias": torch.zeros(6)}))


@pytest.mark.parametrize("name", BROKEN)
def test_contents_that_are_wrong(convert, state, tmp_path, name):
    content, words = _broken(state)[name]
    torch.save(content, tmp_path / "file.pt")
    convert(tmp_path / "file.pt", words)


def test_a_missing_file_and_an_empty_folder(convert, tmp_path):
    convert(tmp_path / "none.pt", "no such file or folder")
    (tmp_path / "empty").mkdir()
    convert(tmp_path / "empty", "no checkpoint in it", "found nothing")


@pytest.mark.filterwarnings("ignore::UserWarning:torch")
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
def test_distributed_folders(convert, tmp_path):
    folder = tmp_path / "folder"
    mark = tmp_path / "mark"
    content = {"model": {"x": torch.ones(4)}}
    dcp.save(content, checkpoint_id=folder, no_dist=True)
    assert list(load_folder(folder)) == ["model"]
    index = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(pickle.dumps({"x": Creates(mark)}))
    convert(folder, "posix.system", "nothing of it was run")
    (folder / ".metadata").write_bytes(index[: len(index) // 2])
    convert(folder)
    for name in (b"/etc/passwd__", b"..", b"a/b.distcp"):
        changed = index.replace(b"\x8c\x0d__0_0.distcp", b"\x8c" + _text(name))
        changed = changed.replace(b"\x8c\x0c__0_0.distcp", b"\x8c" + _text(name))
        assert changed != index
        (folder / ".metadata").write_bytes(_without_frames(changed))
        convert(folder, "outside the folder")
    (folder / ".metadata").write_bytes(index)
    (folder / "__0_0.distcp").write_bytes(b"1234")
    convert(folder, "too short")
    assert not mark.exists()


def _text(name):
    return bytes([len(name)]) + name


def _without_frames(data):
    """The pickle as protocol 4 allows it, without the lengths of its frames."""
    assert data[2:3] == b"\x95"
    return data[:2] + data[11:]


@pytest.mark.filterwarnings("ignore::UserWarning:torch")
@pytest.mark.filterwarnings("ignore::FutureWarning:torch")
def test_values_in_a_distributed_folder_are_not_unpickled(convert, tmp_path):
    mark = tmp_path / "mark"
    content = {"model": {"x": torch.ones(4)}, "epoch": Creates(mark)}
    dcp.save(content, checkpoint_id=tmp_path / "folder", no_dist=True)
    convert(tmp_path / "folder", "posix.system")
    assert not mark.exists()


def test_an_inert_pickle_is_data():
    for protocol in (0, 2, 4, 5):
        value = {"a": [1, (2, None), {True}], "b": 1.5, "c": "text", "d": -(2**40)}
        if protocol < 4:
            value["a"].pop()
        data = pickle.dumps(value, protocol=protocol)
        assert read_pickle(data, ALLOWED) == value
    with pytest.raises(ValueError, match=r"asks for builtins\.eval"):
        read_pickle(b"cbuiltins\neval\n(S'1'\ntR.", ALLOWED)
    with pytest.raises(ValueError, match="broken pickle"):
        read_pickle(b"\x80\x04]", ALLOWED)
