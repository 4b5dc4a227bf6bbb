"""The benchmarks of speed at their smallest size."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest
import yaml

from benchmarks.compiled_step import SMALL_MODEL
from benchmarks.io import __main__ as samples
from benchmarks.save_cost import measure
from benchmarks.small_models import SECTIONS, SEVERAL
from benchmarks.speed import compile_time
from benchmarks.speed.__main__ import accelerator_use, main
from benchmarks.speed.cases import initial_weights, make_case
from benchmarks.speed.jax_side import JaxSide
from benchmarks.speed.torch_side import TorchSide
from credit_jax.models.conversion import to_state_dict


@pytest.mark.slow
@pytest.mark.usefixtures("credit")
@pytest.mark.parametrize("several", ["", "wrf", "unet-diffusion"])
def test_the_smallest_size_is_timed_on_both_sides(tmp_path, several):
    options = ["--size", "tiny", "--no-compile", "--warmup", "1", "--rounds", "3"]
    options += ["--op-rounds", "3", "--report", str(tmp_path)]
    jobs, trace, path = ["inference", "train_step"], tmp_path / "trace", tmp_path / "a"
    if several:
        options += ["--model", several]
    else:
        jobs.append("rollout")
        options += ["--ops", "up block 1", "--trace", str(trace)]
    main([*options, "--json", str(path)])
    found = json.loads(path.read_text())
    assert ("rollout" in found) != bool(several)
    for job in jobs:
        assert found[job]["ratio_eager"] > 0
        assert found[job]["ratio_compiled"] is None
        assert set(found[job]["medians"]) == {"credit_jax", "eager"}
        assert found[job]["rounds"] == {"credit_jax": 3, "eager": 3}
        assert "errors" not in found[job]
    assert found["recipe"]["config"]["size"] == "tiny"
    (report,) = tmp_path.glob("speed_*.md")
    assert report.name == f"speed_{several and several + '_'}tiny_cpu.md"
    text = report.read_text()
    assert "| train_step |" in text
    left_out = "The rollout is left out: the model has other inputs" in text
    assert left_out == bool(several)
    if not several:
        assert [row["op"] for row in found["ops"]] == ["up block 1"]
        assert found["ops"][0]["forward_backward"]["ratio_eager"] > 0
        assert "| up block 1 |" in text
        assert list(trace.rglob("*.xplane.pb"))


@pytest.mark.slow
@pytest.mark.usefixtures("credit")
def test_memory_and_utilization_of_an_accelerator_are_those_of_the_step():
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


@pytest.mark.filterwarnings("ignore:.*output_only_channels")
@pytest.mark.parametrize("size", ["tiny", "demo"])
@pytest.mark.parametrize("model", [*SECTIONS, *SEVERAL])
def test_every_model_has_a_case(model: str, size: str) -> None:
    case = make_case(size, model)
    assert case.model_def.config.type == model
    assert case.is_of_one_field == (model in SECTIONS)
    assert case.inputs.keys() == case.model_def.inputs.keys()
    if case.is_of_one_field:
        assert case.x.shape[1:3] == (7, case.model_def.frames)
        assert case.y.shape[1] in (5, 6)
    elif "diffusion" in model:
        # Inputs include the noised target and the noise step.
        assert case.inputs.keys() == {"x", "noised", "time"}
        assert case.model_def.process is None
        assert set(case.inputs["time"].ravel()) <= set(range(50))


@pytest.mark.slow
def test_compile_times(tmp_path):
    words = ["--models", "small", "--depths", "1,1,1,1", "--out", str(tmp_path)]
    path = compile_time.main(words)
    (run,) = json.loads(path.with_suffix(".json").read_text())["runs"]
    assert min(run["trace"], run["compile"]) > 0


@pytest.mark.slow
def test_a_sample_of_each_store(tmp_path):
    options = ["--grid", "16", "32", "--times", "40", "--threads", "0", "2"]
    options += ["--rounds", "1", "--no-credit", "--out", str(tmp_path)]
    runs = json.loads(samples.main(options).with_suffix(".json").read_text())["runs"]
    assert len(runs) == 2 * len(samples.STORES)
    read = {run["store"]: run["loader"]["num_bytes"] for run in runs}
    assert read["plain, window 4d"] < 0.7 * read["plain"]
    assert read["16 bits"] < 0.7 * read["plain"]
    assert all(
        run[part]["processor"] > 0 for run in runs for part in ("loader", "copy")
    )


@pytest.mark.slow
def test_saves_are_timed(tmp_path: Path) -> None:
    config = {"model": {"type": "wxformer", **SMALL_MODEL}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    result = measure(str(tmp_path / "small"), tmp_path / "run", saves=2)
    blocked, written = result["blocked_seconds"], result["written_seconds"]
    assert len(blocked) == len(written) == 2
    assert all(0 < b <= w for b, w in zip(blocked, written, strict=True))
    assert result["percent"] == 100 * max(blocked) / 900
    # Weights, their average and two moments, which compress little.
    assert 0.8 * 16 < result["bytes"] / result["parameters"] < 1.3 * 16
