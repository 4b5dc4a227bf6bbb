"""`python -m credit_jax.check`: its reports, on the screen and as JSON."""

import json
import math
from pathlib import Path

import pytest

from credit_jax.cli.check import check_config, main
from credit_jax.config import build_config
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.plan import plan_run
from credit_jax.plan.estimates import estimate_memory, local_size
from tests.config.example import example
from tests.models.cases import BASE, section
from tests.training.tiny import write_yaml

MODEL = section(BASE, (32, 64), depth=[1, 1, 1, 1], padding_conf=None)
CONCAT = {"per_step": {"concat": {"type": "concat"}}}
CREDIT = Path(__file__).parents[1] / "reference/credit_configs/config"


def plan(num_devices=None, **changes):
    config = build_config(example(model=dict(MODEL), preblocks=CONCAT, **changes))
    return plan_run(config, num_devices=num_devices, with_data=False)


def memory(num_devices=None, fsdp=None, **parallelism):
    changes = {} if fsdp is None else {"trainer__fsdp": fsdp}
    found = plan(num_devices, trainer__parallelism=parallelism, **changes)
    return estimate_memory(found.config, found.model.model_def, found.model.axes)


# The memory of each kind of parallelism.


def test_parameters_over_domain():
    """All parameters are halved but small ones and those that 2 does not divide."""
    before = memory(domain=2).parts
    after = memory(domain=2, fsdp={"over_domain": True}).parts
    for name in ("parameters", "gradients", "optimizer (AdamW)"):
        assert 0.5 < after[name] / before[name] < 0.6, name
    assert before.keys() | {"gathered over domain"} == after.keys()
    assert 0.9 < after["gathered over domain"] / before["parameters"] < 1


def test_local_sizes_are_shares_of_the_whole():
    kernel = ParamSpec((64, 4, 16), ("embed", "heads", "head_dim"))
    sharded = {
        "data": ("dp_shard",),
        "shard": "dp_shard",
        "num_data": 4,
        "num_shard": 4,
    }
    both = MeshAxes(**sharded, tensor="tp", num_tensor=2)
    for axes, shares in ((MeshAxes(), 1), (MeshAxes(**sharded), 4), (both, 8)):
        assert local_size(kernel, axes) == 64 * 4 * 16 // shares


@pytest.mark.slow
def test_memory_falls_with_every_kind_of_parallelism():
    one = memory(1)
    assert one.parts["parameters"] == 4 * plan().model.model_def.num_parameters
    assert memory(8, data="fsdp2").parts["parameters"] < one.parts["parameters"] / 4
    activations = "activations (estimate)"
    for axis in ("tensor", "domain"):
        assert memory(2, **{axis: 2}).parts[activations] < one.parts[activations]
    assert one.total == math.fsum(one.parts.values())


def test_what_is_printed(tmp_path, capsys):
    config = write_yaml(tmp_path / "c.yml", example(model=MODEL, preblocks=CONCAT))
    assert main(["--config", config, "--no-data"]) == 0
    printed = capsys.readouterr().out
    parts = ("Geometry: stages", "Model: parts", "Memory: parts", "OK so far: data")
    for word in ("Channels: input", "Mesh", *parts):
        assert word in printed, printed


def test_configs_of_credit(capsys):
    """That of generation 1 is to be converted; of data alone the channels are shown."""
    path = CREDIT / "gen_1/arXiv_2024/wxformer_6h_single_step.yml"
    assert main(["-c", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (problem,) = found["problems"]
    assert (found["kind"], problem["where"]) == ("gen1", "data")
    assert f"credit-jax config --to jax {path} --out " in problem["fix"]
    report = check_config(CREDIT / "gen_2/examples/multi_source_data.yml")
    # Without loss and trainer it is a config for forecasts.
    assert [line.split(":")[0] for line in report.problems] == ["save_loc", "model"]
    found = report.document()
    assert [len(found["channels"][side]) for side in ("input", "target")] == [74, 71]
    level = found["channels"]["input"][40]
    assert (level["source"], level["variable"]) == ("ERA5_UpperAir", "U")
    assert level["level_value"] == 10.0
