"""`inspect` of checkpoints of CREDIT and of credit_jax."""

import pytest
import torch

from tests.reference.training import GEN2_CONFIG


def test_inspect_reads_both_sides(bridge, credit_run_folder, tmp_path):
    code, text = bridge("inspect", "--checkpoint", credit_run_folder)
    assert code == 0, text
    assert "checkpoint of none or ddp" in text
    assert "besides: optimizer, schedule, loss scaling, average; epoch 2" in text
    assert (
        "layers.0.0.convs.0.1.weight_u (4,) -> stages/0/embed/convs/0/kernel (u)"
        in text
    )
    assert text.endswith("every key has its place\n")
    state = torch.load(credit_run_folder / "checkpoint.pt", weights_only=True)
    weights = {f"module.{k}": v for k, v in state["model_state_dict"].items()}
    weights["module.more"] = weights.pop("module.up_block4.2.bias")
    torch.save(weights, tmp_path / "file.pt")
    code, text = bridge("inspect", "--checkpoint", tmp_path / "file.pt")
    assert (code, "name it with --config" in text) == (0, True)
    given = "--checkpoint", tmp_path / "file.pt", "--config", GEN2_CONFIG
    code, text = bridge("inspect", *given)
    assert code == 0, text
    assert "module.more (6,) [wrapper removed] -> not known" in text
    assert "missing: up_block4.2.bias (6,)\n  unexpected: more (6,)" in text
    bridge("convert", "--to", "jax", "--checkpoint", credit_run_folder,
           "--out", tmp_path / "jax")  # fmt: skip
    code, text = bridge("inspect", "--checkpoint", tmp_path / "jax")
    assert code == 0, text
    assert "60 micro-batches: weights, ema, optimizer, loss_scale; epoch 4" in text
    assert "forecasts take the moving average" in text
    given = "--to", "jax", "--checkpoint", tmp_path / "jax", "--out", tmp_path / "no"
    code, text = bridge("convert", *given)
    assert (code, "convert it with --to torch" in text) == (2, True)


@pytest.mark.parametrize("command", ["compare", "convert"])
def test_a_checkpoint_that_is_missing_is_named(bridge, tmp_path, command):
    options = ["--to", "jax", "--out", tmp_path / "out"] if command == "convert" else []
    code, text = bridge(command, "--checkpoint", tmp_path / "absent", *options)
    assert (code, f"{tmp_path}/absent: no such file or folder" in text) == (2, True)
