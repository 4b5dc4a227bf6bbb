"""The speed benchmark runs at its smallest size, and its ratios are correct."""

import json

import jax
import pytest

from benchmarks.speed.__main__ import accelerator_use, main
from benchmarks.speed.cases import initial_weights, make_case
from benchmarks.speed.jax_side import JaxSide
from benchmarks.speed.torch_side import TorchSide
from credit_jax.models.conversion import to_state_dict

pytestmark = pytest.mark.slow


def test_the_smallest_size_is_timed_on_both_sides(credit, tmp_path):
    del credit
    path = tmp_path / "speed.json"
    flags = ["--size", "tiny", "--no-compile", "--warmup", "1", "--rounds", "3"]
    more = ["--op-rounds", "3", "--ops", "up block 1", "--report", str(tmp_path)]
    trace = tmp_path / "trace"
    main([*flags, *more, "--json", str(path), "--trace", str(trace)])
    assert list(trace.rglob("*.xplane.pb"))
    found = json.loads(path.read_text())
    for job in ("inference", "rollout", "train_step"):
        assert found[job]["ratio_eager"] > 0
        assert found[job]["ratio_compiled"] is None
        assert set(found[job]["medians"]) == {"credit_jax", "eager"}
        assert found[job]["rounds"] == {"credit_jax": 3, "eager": 3}
        assert "errors" not in found[job]
    assert [row["op"] for row in found["ops"]] == ["up block 1"]
    assert found["ops"][0]["forward_backward"]["ratio_eager"] > 0
    assert found["recipe"]["config"]["size"] == "tiny"
    text = (tmp_path / "speed_tiny_cpu.md").read_text()
    assert "| train_step |" in text
    assert "| up block 1 |" in text


@pytest.mark.parametrize("model", ["wrf", "unet-diffusion"])
def test_networks_of_several_inputs_are_timed_without_a_rollout(
    credit, tmp_path, model
):
    del credit
    flags = ["--size", "tiny", "--no-compile", "--rounds", "2", "--model", model]
    found = main([*flags, "--report", str(tmp_path)])
    assert "rollout" not in found
    for job in ("inference", "train_step"):
        assert found[job]["ratio_eager"] > 0
        assert "errors" not in found[job]
    text = (tmp_path / f"speed_{model}_tiny_cpu.md").read_text()
    assert "The rollout is left out: the model has other inputs" in text


def test_memory_and_utilization_of_an_accelerator_are_those_of_the_step(credit):
    del credit
    case = make_case("tiny")
    params, model_state = initial_weights(case)
    ours = JaxSide(case, params, model_state)
    theirs = TorchSide(case, to_state_dict(case.model_def, params, model_state))
    parameters = 4 * case.model_def.num_parameters
    assert theirs.bytes_held() >= parameters
    theirs.train()
    held = 4 * parameters + case.x.nbytes + case.y.nbytes
    assert held <= theirs.bytes_held() < 1.1 * held
    sides = {"eager": theirs, "compiled": theirs}
    seconds = {"credit_jax": 2.0, "eager": 1.0}
    found = accelerator_use(ours, sides, seconds, size=64)
    assert set(found["memory"]) == {"credit_jax", "eager"}
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(ours.state.params))
    assert found["memory"]["credit_jax"] > 3 * state >= 3 * parameters
    work = ours.floating_point_operations()
    assert found["mfu"] == work / 2 / found["matmul_ceiling"] > 0
