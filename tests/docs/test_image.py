"""The Dockerfile and the extras that pages, messages and commands name."""

import re
import tomllib
from pathlib import Path

from credit_jax.cli.console import all_commands

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {*PROJECT["optional-dependencies"]}
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_what_the_image_copies_is_there_and_not_ignored():
    lines = re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {name for line in lines for name in line.split()}
    ignore = (ROOT / ".dockerignore").read_text().split()
    assert ignore[0] == "*"
    assert copied == {line[1:] for line in ignore if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = wheel["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {*packages, "constraints.txt", "pyproject.toml"}
    assert needed | {PROJECT["readme"], *PROJECT["license-files"]} <= copied


def test_the_image_installs_what_there_is():
    (python,) = re.findall(r"^FROM python:(\d+)\.(\d+)-slim$", DOCKERFILE, re.M)
    assert PROJECT["requires-python"] == ">=3.11"
    assert tuple(map(int, python)) >= (3, 11)
    named = re.findall(r"EXTRAS=([\w,]+)", DOCKERFILE)
    assert {"cloud", "cuda"} <= {name for own in named for name in own.split(",")}
    assert {name for own in named for name in own.split(",")} <= EXTRAS
    (entry,) = re.findall(r'^ENTRYPOINT \["(.+)"\]$', DOCKERFILE, re.MULTILINE)
    assert entry in PROJECT["scripts"]


def test_extras_that_are_named():
    assert {"cuda", "tpu", "cloud", "wandb"} <= EXTRAS
    texts = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("credit_*/**/*.py"),
    ]
    found = {
        (path.name, name)
        for path in texts
        for own in re.findall(
            r"(?:credit-jax|'\.|`)\[([a-z,]+)\]['`]", path.read_text()
        )
        for name in own.split(",")
    }
    assert len(found) > 10
    assert {own for own in found if own[1] not in EXTRAS} == set()
    commands = {entry.extra for entry in all_commands().values()}
    assert commands - {""} <= EXTRAS
