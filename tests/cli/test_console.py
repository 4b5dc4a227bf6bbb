"""The console command: every subcommand, its help and example, its exit codes."""

import importlib.metadata
import json
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from credit_jax.cli.commands import COMPLETED, FAILED, OK, USER_ERROR
from credit_jax.cli.console import all_commands, main
from credit_torch_bridge.commands import COMMANDS as BRIDGE

ROOT = Path(__file__).parents[2]
COMMANDS = all_commands()
# Of the bridge, `config` alone needs no torch.
NAMES = [
    pytest.param(
        name, marks=pytest.mark.torch if name in {*BRIDGE} - {"config"} else ()
    )
    for name in COMMANDS
]


@pytest.mark.parametrize("name", NAMES)
def test_every_command(name, monkeypatch, capsys):
    """Its help, its example, and options: folders may be at some addresses alone."""
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == OK
    command, parsed = COMMANDS[name].load(), []
    assert f"example: credit-jax {name} " in shown
    assert " ".join(command.example.split()) in " ".join(shown.split())
    monkeypatch.setattr(command, "run", lambda self: parsed.append(self) or OK)
    assert main([name, *shlex.split(command.example)]) == OK
    assert len(parsed) == 1
    for key, field in command.model_fields.items():
        if field.title not in (None, "DATA") and field.title in COMPLETED:
            with pytest.raises(ValidationError) as refused:
                command.model_validate({field.alias or key: "ftp://bucket/run"})
            text = f"{key}\n  Value error, 'ftp://bucket/run' is an address of an"
            assert text in str(refused.value)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in BRIDGE])
def test_every_command_runs_as_a_module_too(name, monkeypatch):
    """`python -m credit_jax.train` runs the module of `credit-jax train`."""
    command, started = COMMANDS[name].load(), []
    monkeypatch.setattr(command, "run", lambda self: started.append(self) or FAILED)
    argv = ["program", *shlex.split(command.example)]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"credit_jax.{name.replace('-', '_')}", run_name="__main__")
    assert (len(started), ended.value.code) == (1, FAILED)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(shell, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == OK
    script = capsys.readouterr().out
    for word in (*COMMANDS, "--config", "--devices", "--level-coord"):
        assert word in script


def test_exit_codes(capsys):
    assert main(["train", "--config", "no_such.yaml"]) == USER_ERROR
    assert "no_such.yaml" in capsys.readouterr().err
    check = ["check", "--config", f"{ROOT}/configs/tp2_domain2.yaml", "--no-data"]
    assert main(check) == OK
    assert main([*check, "--devices", "3"]) == FAILED


# In other processes.


def test_without_torch(tmp_path):
    """A process that cannot import it helps, says what to install, converts configs."""
    needs = sorted({*BRIDGE} - {"config"})
    more = {"convert": ["--to", "jax", "--out", "out"]}
    given = ROOT / "tests/bridge/config/configs/gen1.yml"
    files = {target: tmp_path / f"{target}.yml" for target in ("jax", "gen2")}
    commands = [
        ["--version"],
        ["--help"],
        *([name, "--help"] for name in COMMANDS),
        *(["config", given, "--to", to, "--out", path] for to, path in files.items()),
        *([name, "--checkpoint", "x", *more.get(name, ())] for name in needs),
    ]
    code = (
        "import json, sys; sys.modules['torch'] = None\n"
        "from credit_jax.cli.console import main\n"
        "def run(arguments):\n"
        "    try:\n"
        "        return main(arguments)\n"
        "    except SystemExit as ended:\n"
        "        return ended.code\n"
        "print(*[run(arguments) for arguments in json.loads(sys.argv[1])])"
    )
    words = json.dumps([[*map(str, command)] for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", code, words], capture_output=True, text=True, check=True
    )
    version, *out, codes = done.stdout.splitlines()
    ends = [OK] * (len(commands) - len(needs)) + [USER_ERROR] * len(needs)
    assert [*map(int, codes.split())] == ends, done.stderr
    assert version.startswith("credit-jax ")
    assert ", jax " in version
    shown = "\n".join(out)
    for name, entry in COMMANDS.items():
        assert f"usage: credit-jax {name}" in shown
        assert entry.summary in shown
    for path in files.values():
        assert f"written: {path}" in out
        assert path.stat().st_size > 0
    message = (
        "error: this command needs torch, which is not installed; install it with: "
        "pip install 'credit-jax[bridge]'"
    )
    assert done.stderr.strip().splitlines() == [message] * len(needs)


@pytest.mark.slow
def test_the_installed_command():
    (entry,) = importlib.metadata.entry_points(
        group="console_scripts", name="credit-jax"
    )
    assert entry.load() is main
    program = Path(sys.executable).with_name("credit-jax")
    command = [program, "check", "--config", "configs/demo.yaml", "--no-data"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == OK, done.stderr
    assert "OK" in done.stdout
