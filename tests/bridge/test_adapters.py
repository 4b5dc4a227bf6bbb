"""CREDIT forecasts with the sums of matrices and adapters as credit_jax does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from credit_jax.cli.commands import OK
from credit_jax.cli.train import main as train
from credit_jax.extensions.packaging import command as package
from tests.bridge.test_back import forecasts_agree, small_run

pytestmark = [pytest.mark.reference, pytest.mark.slow]

# Largest relative error of a field of a forecast, two steps of the model of the demo.
FIELD = 1e-6
LORA = {"rank": 4, "alpha": 8, "targets": ["*attention/to_*", "*feed_forward*"]}


def test_a_run_with_adapters(
    credit: Any, bridge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = small_run("demo", tmp_path)
    config["trainer"] |= {"skip_validation": True, "grad_accum_every": 1}
    finetune = {"from": str(tmp_path / "base"), "lora": LORA}
    for name, section in (("base", None), ("run", finetune)):
        config["save_loc"] = str(tmp_path / name)
        config["trainer"]["finetune"] = section
        path = tmp_path / f"{name}.yml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        assert train(["--config", str(path), "--cache", "none"]) == OK
    given = "--checkpoint", tmp_path / "run", "--out", tmp_path / "torch"
    code, text = bridge("convert", "--to", "torch", "--merge", *given)
    assert code == OK, text
    forecasts_agree(tmp_path, FIELD)

    packed = tmp_path / "package"
    options = ["--checkpoint", str(tmp_path / "run"), "--weights", "last"]
    assert package.main([*options, "--adapters", "--out", str(packed)]) == OK
    size = sum(path.stat().st_size for path in packed.rglob("*") if path.is_file())
    whole = (tmp_path / "torch" / "checkpoint.pt").stat().st_size
    assert size < 0.1 * whole
    given = "--checkpoint", packed, "--base", tmp_path / "base"
    code, text = bridge("convert", "--to", "torch", *given, "--out", tmp_path / "sums")
    assert code == OK, text
    code, text = bridge("convert", "--to", "jax", *given, "--out", tmp_path / "jax")
    assert code == OK, text
    given = "--checkpoint", tmp_path / "jax", "--out", tmp_path / "back"
    code, text = bridge("convert", "--to", "torch", *given)
    assert code == OK, text
    of_base = "--checkpoint", tmp_path / "base", "--out", tmp_path / "base_torch"
    code, text = bridge("convert", "--to", "torch", "--merge", *of_base)
    assert code != OK
    assert "has no adapters (trainer.finetune.lora)" in text
    code, text = bridge("convert", "--to", "torch", *of_base)
    assert code == OK, text
    # CREDIT's file is as good a base, for its package and for training.
    file = tmp_path / "base_torch" / "checkpoint.pt"
    given = "--checkpoint", packed, "--base", file, "--out", tmp_path / "of_file"
    code, text = bridge("convert", "--to", "torch", *given)
    assert code == OK, text
    config["save_loc"] = str(tmp_path / "again")
    config["trainer"]["finetune"] = finetune | {"from": str(file)}
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    assert train(["--config", str(path), "--cache", "none"]) == OK
    again = tmp_path / "again_package"
    options = ["--checkpoint", str(tmp_path / "again"), "--weights", "last"]
    assert package.main([*options, "--adapters", "--out", str(again)]) == OK
    given = "--checkpoint", again, "--base", file, "--out", tmp_path / "of_file_alone"
    code, text = bridge("convert", "--to", "torch", *given)
    assert code == OK, text
    names = ("torch", "sums", "back", "of_file", "of_file_alone")
    expected, *others = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)
        for name in names
    )
    for other in others:
        assert expected["model_state_dict"].keys() == other["model_state_dict"].keys()
        for key, tensor in expected["model_state_dict"].items():
            assert torch.equal(tensor, other["model_state_dict"][key]), key
