"""The wheels for a machine without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import wheels


def test_the_stub_installs_and_imports(tmp_path: Path) -> None:
    stub = wheels.write_stub(tmp_path)
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    more = ["--disable-pip-version-check", "--target", str(site), str(stub)]
    subprocess.run([*pip, *more], check=True)
    code = (
        "from torch_harmonics import RealSHT, InverseRealSHT\n"
        "from torch_harmonics.quadrature import clenshaw_curtiss_weights\n"
        f"import torch_harmonics as t; assert t.__file__.startswith({str(site)!r})"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(site)}
    )


@pytest.mark.parametrize(("size", "status"), [(1000, 0), (50_000_000, 1)])
def test_wheels_that_are_too_large_are_an_error(
    tmp_path: Path, monkeypatch, capsys, size: int, status: int
) -> None:
    def download(command: list[str], check: bool) -> None:
        assert check
        assert "--only-binary=:all:" in command
        assert f"--dest={tmp_path}" in command
        assert {*wheels.OURS, *wheels.CREDIT} <= set(command)
        with (tmp_path / "some-1-py3-none-any.whl").open("wb") as file:
            file.truncate(size)

    monkeypatch.setattr(wheels.subprocess, "run", download)
    assert wheels.main([str(tmp_path)]) == status
    assert "some-1-py3-none-any.whl" in capsys.readouterr().out


def test_the_readme_lists_them() -> None:
    text = Path(wheels.__file__).with_name("README.md").read_text()
    for name in (*wheels.OURS, *wheels.CREDIT, wheels.STUB):
        assert f"`{name}`" in text
