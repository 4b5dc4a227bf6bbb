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
def test_the_help_of_every_command_names_an_example(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == OK
    example = COMMANDS[name].load().example
    assert f"example: credit-jax {name} " in shown
    assert " ".join(example.split()) in " ".join(shown.split())


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_every_command_parses(name, monkeypatch):
    command, parsed = COMMANDS[name].load(), []
    monkeypatch.setattr(command, "run", lambda self: parsed.append(self) or OK)
    assert main([name, *shlex.split(command.example)]) == OK
    assert len(parsed) == 1


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_is_no_address(name):
    """Folders may be at addresses of some kinds alone."""
    command = COMMANDS[name].load()
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


def test_the_list_of_commands(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == OK
    shown = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert name in shown
        assert entry.summary in shown


def test_a_file_that_is_not_there(capsys):
    assert main(["train", "--config", "no_such.yaml"]) == USER_ERROR
    assert "no_such.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(("override", "code"), [([], OK), (["--devices", "3"], FAILED)])
def test_check(override, code, capsys):
    config = ROOT / "configs/tp2_domain2.yaml"
    assert main(["check", "--config", str(config), "--no-data", *override]) == code
    capsys.readouterr()


@pytest.mark.slow
def test_without_torch_a_command_says_what_to_install():
    names = sorted({*BRIDGE} - {"config"})
    options = {"convert": ("--to", "jax", "--out", "out")}
    codes, out, err = _without_torch(
        *((name, "--checkpoint", "x", *options.get(name, ())) for name in names)
    )
    assert codes == [USER_ERROR] * len(names)
    assert out == []
    message = (
        "error: this command needs torch, which is not installed; install it with: "
        "pip install 'credit-jax[bridge]'"
    )
    assert err == [message] * len(names)


def test_help_and_version_need_no_torch():
    names = sorted(COMMANDS)
    codes, out, err = _without_torch(
        *((name, "--help") for name in names), ("--version",)
    )
    assert codes == [OK] * (len(names) + 1), err
    for name in names:
        assert any(f"usage: credit-jax {name}" in line for line in out)
    assert any(line.startswith("credit-jax ") and ", jax " in line for line in out)


@pytest.mark.slow
def test_config_files_are_converted_without_torch(tmp_path):
    given = ROOT / "tests/bridge/config/configs/gen1.yml"
    files = {target: tmp_path / f"{target}.yml" for target in ("jax", "gen2")}
    codes, out, err = _without_torch(
        *(("config", given, "--to", to, "--out", file) for to, file in files.items())
    )
    assert codes == [OK, OK], err
    for file in files.values():
        assert f"written: {file}" in out
        assert file.stat().st_size > 0


def _without_torch(*commands):
    """Runs console commands in a process that cannot import torch.

    Returns:
        The exit code of each command, and the lines of stdout and stderr.
    """
    code = (
        "import json, sys; sys.modules['torch'] = None\n"
        "from credit_jax.cli.console import main\n"
        "def run(arguments):\n"
        "    try:\n"
        "        return main(arguments)\n"
        "    except SystemExit as ended:\n"
        "        return ended.code\n"
        "codes = [run(arguments) for arguments in json.loads(sys.argv[1])]\n"
        "print(*codes)"
    )
    given = json.dumps([[*map(str, arguments)] for arguments in commands])
    command = [sys.executable, "-c", code, given]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *out, codes = done.stdout.splitlines()
    return [*map(int, codes.split())], out, done.stderr.strip().splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(shell, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == OK
    script = capsys.readouterr().out
    for word in (*COMMANDS, "--config", "--devices", "--level-coord"):
        assert word in script


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


def test_the_package_is_the_same_command():
    command = [sys.executable, "-m", "credit_jax", "no_such_command"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == USER_ERROR
    assert "is not available" in done.stderr
