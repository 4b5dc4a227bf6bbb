"""docs/coming_from.md lists all names of five interfaces, and ours in it exist."""

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/coming_from.md").read_text()
WORDS = ("automatic", "not needed")
OURS = r"`((?:credit_jax|credit_torch_bridge)\.[\w.]+)`"
DOTTED = sorted(set(re.findall(OURS, PAGE)))


def members(owner: str, *names: str) -> list[str]:
    return [owner, *(f"{owner}.{name}" for name in names)]


# The documented names of each interface.
THEIRS = {
    "credit.parallel.mesh": [
        "logger",
        "dp_world_size",
        "build_device_mesh",
        "data_parallel_coords",
        "parse_parallelism_conf",
    ],
    "credit.parallel.tensor_parallel": [
        "logger",
        *members("TpColConv2d", "tp_group", "conv", "forward"),
        *members("TpRowConv2d", "tp_group", "conv", "forward"),
        *members("TpColLinear", "tp_group", "linear", "forward"),
        *members("TpRowLinear", "tp_group", "linear", "forward"),
        *("_tp_col", "_tp_row", "_assert_plain_1x1", "_tp_group_from_mesh"),
        *("_rgetattr", "_rsetattr", "_to_col_parallel", "_to_row_parallel"),
        "apply_tensor_parallel",
        "sync_replicated_gradients",
        "allreduce_grads_avg",
    ],
    "hyper_parallel.trainer.parallel_dims": [
        *("logger", "init_device_mesh", "ParallelDims"),
        *("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "etp"),
        *("ulysses_degree", "world_size"),
        *("from_config", "validate_against_model", "build_mesh"),
        *('"fsdp"', '"dp"', '"loss"', '"efsdp"', '"etp"', '"batch"'),
        *("dp_size", "non_dp_size", "tp_enabled", "cp_enabled", "ep_enabled"),
        *("pp_enabled", "fsdp_enabled", "summary"),
    ],
    "credit.domain_parallel": [
        *members(
            "DomainParallelManager",
            *("world_size", "domain_parallel_size", "data_parallel_size", "shard_dim"),
            *("domain_group", "data_parallel_group", "domain_rank", "dp_rank"),
            *("domain_world_size", "dp_world_size", "neighbor_ranks"),
            *("is_first_domain_rank", "is_last_domain_rank"),
        ),
        "initialize_domain_parallel",
        "get_domain_parallel_manager",
        *members("HaloExchange", "halo_width", "dim", "forward", "trim"),
        *members(
            "DomainParallelConv2d",
            *("conv", "shard_dim", "halo_exchange", "forward", "weight", "bias"),
        ),
        *members(
            "DomainParallelConv3d", "conv", "shard_dim", "halo_exchange", "forward"
        ),
        *members(
            "DomainParallelConvTranspose2d",
            *("conv", "shard_dim", "halo_width", "halo_exchange", "forward"),
        ),
        *members(
            "DomainParallelConvTranspose3d",
            *("conv", "shard_dim", "halo_width", "halo_exchange", "forward"),
        ),
        *members(
            "DomainParallelGroupNorm",
            *("num_groups", "num_channels", "eps", "affine", "forward"),
        ),
        *members(
            "DomainParallelInterpolate",
            *("size", "mode", "shard_dim", "halo_exchange", "forward"),
        ),
        *members(
            "DomainParallelPeriodicConv2d",
            *("conv", "padding", "shard_dim", "halo_exchange", "forward"),
            *("weight", "bias"),
        ),
        "convert_to_domain_parallel",
        "validate_sharding_constraints",
        *("shard_tensor", "gather_tensor", "shard_batch", "sync_domain_gradients"),
    ],
    "kempnerforge.distributed.parallel": [
        *("has_dp_mesh", "get_dp_mesh", "default_mp_policy", "apply_ac"),
        *("apply_float8", "apply_fsdp2", "build_parallel_model"),
        *("reshard_after_forward", "apply_expert_parallel", "apply_tensor_parallel"),
        "build_stage_module",
    ],
}


def rows(section: str) -> list[list[str]]:
    """Returns the cells of the table below a heading."""
    text = PAGE.split(f"## `{section}`")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def resolve(dotted: str) -> Any:
    """Returns the module, class, function or field of a dotted name."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            fields = dataclasses.is_dataclass(found) and {
                field.name: field for field in dataclasses.fields(found)
            }
            found = (fields or {}).get(name) or getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


@pytest.mark.parametrize("dotted", DOTTED)
def test_our_names_can_be_imported(dotted):
    resolve(dotted)


def test_a_wrong_name_is_noticed():
    with pytest.raises(AttributeError):
        resolve("credit_jax.parallel.rows.reshard.fetsh")
    with pytest.raises(AttributeError):
        resolve("credit_jax.parallel.mesh.dims.ParallelDims.dq")


@pytest.mark.parametrize("section", THEIRS)
def test_every_name_has_one_row(section):
    found = [name for row in rows(section) for name in re.findall(r"`([^`]+)`", row[0])]
    assert sorted(found) == sorted(THEIRS[section])


@pytest.mark.parametrize("section", THEIRS)
def test_every_row_says_where_or_why(section):
    for theirs, here, why in rows(section):
        named = re.fullmatch(OURS, here)
        assert named or here in WORDS, f"{theirs}: {here!r} is none of {WORDS}"
        if here in ("automatic", "not needed"):
            assert why, f"{theirs} is {here}, but the reason is missing"
        if here == "automatic":
            assert "`tests/" in why, f"{theirs} is automatic; which test proves it?"


def test_no_row_waits():
    """Each feature is implemented, or rejected with a reason."""
    found = [line for line in PAGE.splitlines() if "without effect" in line]
    found += [line for line in PAGE.splitlines() if "not yet" in line]
    assert not found, found


def test_the_tests_that_are_named_exist():
    named = set(re.findall(r"`(tests/[\w/.]+)`", PAGE))
    missing = sorted(path for path in named if not (ROOT / path).exists())
    assert not missing, missing
