"""Features of all commands: exit codes, errors, help, options."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from credit_jax.cli import commands
from credit_jax.cli.commands import (
    DIVERGED,
    FAILED,
    OK,
    USER_ERROR,
    Command,
    CommandEntry,
    CommandError,
    option,
    run_group,
)

ENDS = {
    "well": None,
    "bad value": ValueError("the value is bad"),
    "no file": FileNotFoundError("there is no file"),
    "no memory": MemoryError(),
    "diverged": CommandError("the loss is nan", DIVERGED),
    "different": CommandError("they differ", FAILED),
    "interrupted": KeyboardInterrupt(),
    "a bug": RuntimeError("a bug"),
    "no gpu": RuntimeError(
        "Unable to initialize backend 'cuda': none (set JAX_PLATFORMS='')\nand more"
    ),
    "many shapes": ValueError(
        "\n".join(["144 differ", *map(str, range(144)), "Do x."])
    ),
}


class It(Command):
    """A command that does what it is told."""

    example = "--how well"

    how: str = option("to end", "well", choices=ENDS)
    out: str = option("what to print", "here", "DIR")
    times: int = option("to do it", 1, ge=1)

    def run(self):
        if ENDS[self.how] is not None:
            raise ENDS[self.how]
        print("done" if self.out == "here" else self.out)
        return OK


def call(*argv):
    return It.main(argv, prog="python -m it")


def test_a_platform_that_the_machine_lacks(monkeypatch, capsys):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert call("--how", "no gpu") == USER_ERROR
    line = capsys.readouterr().err
    assert line.startswith("error: JAX_PLATFORMS=cuda: Unable to initialize backend")
    assert line.endswith("unset it, or set it to cpu or to what this machine has\n")
    assert line.count("\n") == 1


def test_a_long_error_is_cut_before_what_is_to_be_done(capsys):
    assert call("--how", "many shapes") == USER_ERROR
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 25
    assert lines[0] == "error: 144 differ"
    assert lines[-4] == "  and 122 more lines; --debug shows all"
    assert lines[-1] == "Do x."


@pytest.mark.parametrize("path", ["~/runs/a~b", "x/~", "~no/such"])
def test_the_home_folder_of_an_option(path, monkeypatch, capsys):
    """A shell writes out `--out ~/runs`, not `--out=~/runs`."""
    monkeypatch.setenv("HOME", "/home/someone")
    assert call(f"--out={path}") == OK
    expected = path.replace("~/", "/home/someone/", 1) if path[:2] == "~/" else path
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize("how", ["bad value", "diverged", "a bug"])
def test_debug_raises_the_error(how):
    """A bug, which is no error of the user, is raised always."""
    with pytest.raises(type(ENDS[how])):
        call("--how", how, *([] if how == "a bug" else ["--debug"]))


GROUP = {
    "it": CommandEntry(f"{__name__}:It", "does it"),
    "other": CommandEntry("no_such_module:It", "fails"),
    "more": CommandEntry("needs_more:It", "fails", extra="more"),
}


def group(*words):
    return run_group(GROUP, [*words], prog="program", description="Commands.")


def test_a_group_imports_the_chosen_command_only(capsys):
    assert group("it", "--how", "no file") == USER_ERROR
    assert capsys.readouterr().err == "error: there is no file\n"
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        group("other")


@pytest.mark.parametrize("given", [[], ["--", "it"], ["--how"]])
def test_the_command_comes_first(given):
    with pytest.raises(SystemExit) as ended:
        group(*given)
    assert ended.value.code == USER_ERROR


def test_late_callbacks_after_a_failed_read_are_dropped(monkeypatch):
    """TensorStore's callbacks may come when a command has ended with its error."""
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    for _ in range(2):
        commands._silence(debug=False)
    for text in ("Event loop is closed", "another error"):
        error = RuntimeError(text)
        sys.unraisablehook(SimpleNamespace(object=None, exc_value=error))
    (found,) = seen
    assert str(found.exc_value) == "another error"


QUIET = """
import os, sys, time
import jax
from jax.sharding import PartitionSpec as P
from credit_jax.cli.commands import Command
from credit_jax.io import activity

activity.SECONDS, activity._LOOK = 0.3, 0.1

def late(x, place):
    while int(place) and not os.path.exists(os.environ["RELEASE"]):
        time.sleep(0.1)
    return x

def summed(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    y = jax.pure_callback(late, shape, x, jax.lax.axis_index("d"))
    return jax.lax.psum(y, "d")

class It(Command):
    def run(self):
        jax.config.update("jax_num_cpu_devices", 2)
        mesh = jax.make_mesh((2,), ("d",), (jax.sharding.AxisType.Auto,))
        program = jax.shard_map(summed, mesh=mesh, in_specs=P("d"), out_specs=P())
        print(jax.jit(program)(jax.numpy.arange(4.0)))
        return 0

sys.exit(It.main(prog="it"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("debug", [False, True])
def test_alarms_of_xla_do_not_come_through(debug, monkeypatch, tmp_path):
    """Only with `--debug`; the log says that the command runs."""
    alarm = "--xla_cpu_collective_call_warn_stuck_timeout_seconds=1"
    monkeypatch.setenv("XLA_FLAGS", alarm)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    # CREDIT sets it where it is imported, and XLA prints no alarm.
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    release = tmp_path / "release"  # lets the late device go on
    monkeypatch.setenv("RELEASE", str(release))
    words = [sys.executable, "-c", QUIET, *(["--debug"] if debug else [])]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    lines = []
    with subprocess.Popen(words, **pipes) as process:
        for line in process.stderr:
            lines.append(line.rstrip())
            has_alarm = any("may be stuck" in each for each in lines)
            if has_alarm or (not debug and lines.count("it is running") == 12):
                release.touch()
        printed = process.stdout.read()
    assert (process.returncode, printed) == (0, "[2. 4.]\n"), lines
    assert has_alarm == debug
    if not debug:
        assert "it is running" in lines
