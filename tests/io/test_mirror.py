"""Folders at an address: what is uploaded, what a kill leaves, who may write."""

import json
import os
import socket
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path

import obstore
import pytest

from credit_jax.io import mirror
from credit_jax.io.errors import writable_folder
from credit_jax.io.mirror import LIST, LOCK, Mirror, local_path, upload_all
from credit_jax.io.remote import parts_of, store_at
from tests.io.s3_server import served


@pytest.fixture(autouse=True)
def machines(monkeypatch, tmp_path):
    """`move(name)` goes on as another machine; nothing is uploaded by the clock."""
    monkeypatch.setattr(mirror, "INTERVAL", 1e6)

    def move(name):
        while mirror._mirrors:  # as if the process had ended
            mirror._mirrors.popitem()[1]._users.close()
        store_at.cache_clear()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        monkeypatch.setattr(socket, "gethostname", lambda: name)

    move("one")
    yield move
    move("none")


@pytest.fixture
def bucket(monkeypatch):
    """The objects of a bucket, and the faults of its server."""
    with served("bucket") as (server, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield server.buckets["bucket"], server.faults


def contents(folder):
    paths = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_another_machine_sees_what_was_uploaded(bucket, machines):
    objects, faults = bucket
    with writable_folder("s3://bucket/run", "--out") as folder:
        assert "run/" + LOCK in objects
        (folder / "checkpoints/1").mkdir(parents=True)
        (folder / "checkpoints/1/.zarray").write_bytes(os.urandom(6_000_000))
        (folder / "log.csv").write_text("1\n")
        (folder / ".log.csv.partial-host-7").write_text("half")
    faults["rate"] = 0.1
    upload_all()
    names = {"log.csv", "checkpoints/1/.zarray"}
    assert {*objects} == {f"run/{name}" for name in (LIST, *names)}
    machines("two")
    folder = Path(local_path("s3://bucket/run/"))
    assert {*contents(folder)} == names
    (folder / "log.csv").write_text("1\n2\n")
    (folder / "checkpoints/1/.zarray").unlink()
    (folder / "checkpoints/2").write_text("two")
    upload_all()
    assert "run/checkpoints/1/.zarray" not in objects
    machines("one")
    # What lies in the folder of a run leads to that run, whatever is asked for first.
    path = Path(local_path("s3://bucket/run/checkpoints/2"))
    assert path.read_text() == "two"
    assert (path.parents[1] / "log.csv").read_text() == "1\n2\n"
    assert not (path.parent / "1").exists()


def test_objects_that_others_have_put_there(bucket, machines):
    objects, _ = bucket
    store = {"p/package.yml": b"a", "p/weights/0": b"b", "pp/c": b"c", "file.nc": b"d"}
    for name, value in store.items():
        objects[name] = value, f'"{name}"', datetime.now(UTC)
    assert contents(local_path("s3://bucket/p")) == {
        "package.yml": b"a",
        "weights/0": b"b",
    }
    assert Path(local_path("s3://bucket/file.nc")).read_bytes() == b"d"
    Path(local_path("s3://bucket/new.nc")).write_bytes(b"new")
    upload_all()
    assert objects["new.nc"][0] == b"new"


def test_a_kill_leaves_what_the_last_list_says(bucket, machines):
    """Killed after an upload, before the list: the next machine does not see it."""
    objects, _ = bucket
    folder = Path(local_path("s3://bucket/run"))
    folder.mkdir()
    (folder / "a").write_text("a")
    one = mirror._mirrors["s3://bucket/run"]
    one.upload()
    last = objects[f"run/{LIST}"]
    (folder / "b").write_text("b")
    one.upload()
    objects[f"run/{LIST}"] = last
    machines("two")
    objects.pop(f"run/{LOCK}")  # it has expired
    folder = Path(local_path("s3://bucket/run"))
    assert {*contents(folder)} == {"a"}
    # On the machine of the killed job, what it had is there.
    machines("one")
    objects[f"run/{LIST}"] = (
        json.dumps({"a": objects["run/a"][1], "b": objects["run/b"][1]}).encode(),
        "t",
        last[2],
    )
    folder = Path(local_path("s3://bucket/run"))
    (folder / "c").write_text("not uploaded")
    machines("one")
    assert {*contents(local_path("s3://bucket/run"))} == {"a", "b", "c"}


def test_what_was_not_uploaded_is_kept_aside(bucket, machines, caplog):
    """Two machines, of which the first could not upload its last file."""
    folder = Path(local_path("s3://bucket/run"))
    folder.mkdir()
    (folder / "a").write_text("a")
    upload_all()
    local_path("s3://bucket/run")
    (folder / "b").write_text("b")
    machines("two")
    (Path(local_path("s3://bucket/run")) / "c").write_text("c")
    upload_all()
    machines("one")
    assert {*contents(local_path("s3://bucket/run"))} == {"a", "c"}
    (aside,) = folder.parent.glob("run_*")
    assert {*contents(aside)} == {"a", "b"}
    assert str(aside) in caplog.text


def test_a_token_that_ends_in_the_middle(bucket, machines):
    """What was not uploaded goes there with the next start, with a token that holds."""
    objects, faults = bucket
    with writable_folder("s3://bucket/run", "--out") as folder:
        (folder / "a").write_text("a")
        mirror._mirrors["s3://bucket/run"].upload()
        (folder / "b").write_text("b")
    faults["expired"] = True
    with pytest.raises(OSError, match=r"s3://bucket/run: .*ExpiredToken"):
        upload_all()
    assert "run/b" not in objects
    del faults["expired"]
    machines("one")
    objects.pop(f"run/{LOCK}")  # of a process that has ended
    with writable_folder("s3://bucket/run", "--out") as folder:
        assert {*contents(folder)} == {"a", "b"}
    upload_all()
    machines("two")
    assert {*contents(local_path("s3://bucket/run"))} == {"a", "b"}


def test_a_list_of_the_server_that_lags(bucket, machines):
    """Other machines read the list that is written after the files."""
    _, faults = bucket
    faults["lag"] = 60
    with writable_folder("s3://bucket/run", "--out") as folder:
        (folder / "a").write_text("a")
    upload_all()
    store, key = parts_of("s3://bucket/run")
    assert not [each for part in obstore.list(store, key) for each in part]
    machines("two")
    assert {*contents(local_path("s3://bucket/run"))} == {"a"}


def test_two_jobs_are_kept_apart(bucket, machines, monkeypatch):
    objects, _ = bucket
    with writable_folder("s3://bucket/run", "--out"):
        pass
    one = mirror._mirrors["s3://bucket/run"]
    renew = threading.Timer(1.5, one.upload)
    renew.start()
    machines("two")
    with pytest.raises(ValueError, match=r"a job uses it \(\d+ on one\)"):
        writable_folder("s3://bucket/run", "--out").__enter__()
    renew.join()
    # One that is gone renews nothing; when it comes back, it has lost.
    monkeypatch.setattr(mirror, "LEASE", 2.0)
    two = Mirror("s3://bucket/run")
    two.claim()
    with pytest.raises(ValueError, match="another job has taken it"):
        one.upload()
    two.close()
    assert f"run/{LOCK}" not in objects


def test_a_lock_of_a_dead_process_of_this_machine_is_free(bucket, machines):
    objects, _ = bucket
    with subprocess.Popen(["true"]) as ended:
        pass
    holder = json.dumps({"process": ended.pid, "host": "one"}).encode()
    objects[f"run/{LOCK}"] = holder, '"x"', datetime.now(UTC)
    with writable_folder("s3://bucket/run", "--out"):
        assert json.loads(objects[f"run/{LOCK}"][0])["process"] == os.getpid()


WRONG = {
    "no credentials": ({}, "cannot be reached without credentials"),
    "no bucket": ({"address": "s3://none/run"}, "NoSuchBucket"),
    "no right to write": ({"faults": {"read-only": True}}, "cannot be written to"),
    "another kind": ({"address": "ftp://bucket/run"}, "an address of an unknown kind"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_said(name, bucket, machines, monkeypatch):
    changes, text = WRONG[name]
    bucket[1].update(changes.get("faults", {}))
    if name == "no credentials":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        store_at.cache_clear()
    with pytest.raises(ValueError, match=text) as error:
        writable_folder(changes.get("address", "s3://bucket/run"), "--out").__enter__()
    assert str(error.value).startswith("--out: ")
