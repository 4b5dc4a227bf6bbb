"""The speed benchmark at its smallest: it runs, and ratios mean what they say."""

import json
import time

import pytest

pytest.importorskip("torch")

import jax

from benchmarks.speed import accelerator_use, main
from benchmarks.speed_cases import initial_weights, make_case
from benchmarks.speed_jax import JaxSide
from benchmarks.speed_torch import TorchSide
from benchmarks.timing import Times, ratio, take_turns
from credit_torch_bridge.checkpoint.state_dict import to_state_dict


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


def test_memory_and_utilization_of_an_accelerator_are_those_of_the_step(credit):
    del credit
    case = make_case("tiny")
    params, spectral_norm_state = initial_weights(case)
    ours = JaxSide(case, params, spectral_norm_state)
    theirs = TorchSide(case, to_state_dict(case.model_def, params, spectral_norm_state))
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


def test_sides_take_turns_and_ratios_are_theirs_by_ours():
    order = []
    sides = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    found = take_turns(sides, warmup=1, rounds=4)
    assert order == ["a", "b"] * 5
    assert all(len(times.seconds) == 4 for times in found.values())
    order.clear()
    sides["slow"] = lambda: (time.sleep(0.05), order.append("slow"))
    found = take_turns(sides, warmup=0, rounds=4, limit=0.01)
    assert order == ["a", "b", "slow", "a", "b", "a", "b"]
    assert ratio(found["slow"], found["a"]) > 1
    fast, slow = Times((1.0, 1.0, 2.0)), Times((2.0, 2.0, 4.0))
    assert ratio(slow, fast) == 2
    assert slow.median == 2
    assert slow.spread == pytest.approx(0.5)
