"""Folders of torch.distributed, read without unpickling."""

import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp

from credit_torch_bridge.checkpoint.torch_distributed import load_folder
from tests.bridge.checkpoint.untrusted import Creates

pytestmark = [
    # Silence deprecation warnings of torch.distributed, with which the tests write.
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore::FutureWarning:torch"),
]


def test_distributed_folders(assert_refused, tmp_path):
    folder = tmp_path / "folder"
    mark = tmp_path / "mark"
    content = {"model": {"x": torch.ones(4)}}
    dcp.save(content, checkpoint_id=folder, no_dist=True)
    assert list(load_folder(folder)) == ["model"]
    index = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(pickle.dumps({"x": Creates(mark)}))
    assert_refused(folder, "posix.system", "nothing of it was run")
    (folder / ".metadata").write_bytes(index[: len(index) // 2])
    assert_refused(folder)
    for name in (b"/etc/passwd__", b"..", b"a/b.distcp"):
        changed = index.replace(b"\x8c\x0d__0_0.distcp", b"\x8c" + _text(name))
        changed = changed.replace(b"\x8c\x0c__0_0.distcp", b"\x8c" + _text(name))
        assert changed != index
        (folder / ".metadata").write_bytes(_without_frames(changed))
        assert_refused(folder, "outside the folder")
    (folder / ".metadata").write_bytes(index)
    (folder / "__0_0.distcp").write_bytes(b"1234")
    assert_refused(folder, "too short")
    assert not mark.exists()


def _text(name):
    return bytes([len(name)]) + name


def _without_frames(data):
    """Returns a pickle of protocol 4 without its FRAME opcodes."""
    assert data[2:3] == b"\x95"
    return data[:2] + data[11:]


def test_values_in_a_distributed_folder_are_not_unpickled(assert_refused, tmp_path):
    mark = tmp_path / "mark"
    content = {"model": {"x": torch.ones(4)}, "epoch": Creates(mark)}
    dcp.save(content, checkpoint_id=tmp_path / "folder", no_dist=True)
    assert_refused(tmp_path / "folder", "posix.system")
    assert not mark.exists()
