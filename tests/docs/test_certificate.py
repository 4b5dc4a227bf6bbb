"""docs/certificate.md: its block runs, with the model of docs/adding_a_model.md."""

import functools
import re
from pathlib import Path

import pytest

import credit_jax
from tests.support.code_blocks import code_blocks

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_a_model_of_ones_own(tmp_path, monkeypatch, capsys):
    codes = code_blocks((DOCS / "adding_a_model.md").read_text(), "python")
    code = "\n".join(code for code in codes if "@register_model" not in code)
    # With few channels, as the page says.
    small = re.sub(r"(channels|dim|levels): (PositiveInt) = \d+", r"\1: \2 = 8", code)
    (tmp_path / "resnet.py").write_text(small)
    monkeypatch.syspath_prepend(tmp_path)
    certify = functools.partial(credit_jax.certify_model, meshes=["tp2xdomain3"])
    monkeypatch.setattr(credit_jax, "certify_model", certify, raising=False)
    (block,) = code_blocks((DOCS / "certificate.md").read_text(), "python")
    exec(compile(block, "certificate.md", "exec"), {})
    assert "tp2xdomain3              the same: " in capsys.readouterr().out
