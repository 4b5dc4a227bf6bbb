"""The mesh of a `parallelism` section: its shape, errors, ranks and samples."""

import jax
import pytest
from jax.sharding import AxisType

from credit_jax.config import parse
from credit_jax.config.trainer import ParallelismConfig
from credit_jax.parallel.mesh.credit import (
    build_device_mesh,
    data_parallel_coords,
    dp_world_size,
    local_dp_ranks,
    parse_parallelism_conf,
    shares_samples,
)
from credit_jax.parallel.mesh.device_mesh import (
    DOMAIN,
    DP_REPLICATE,
    DP_SHARD,
    TP,
    mesh_of_degrees,
)
from tests.parallel.mesh.cases import HSDP, section


class FakeDevice:
    """A stand-in for a device of another process."""

    def __init__(self, number: int, process_index: int) -> None:
        self.id = number
        self.process_index = process_index


def test_parse_fills_in_the_defaults_and_leaves_the_config_alone():
    conf = {"trainer": {"parallelism": {"tensor": "2"}}}
    assert parse_parallelism_conf(conf) == section("none", tensor=2)
    assert conf == {"trainer": {"parallelism": {"tensor": "2"}}}


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({}, "Gen2 configs must define trainer.parallelism with data, tensor"),
        (
            {"parallelism": {"data": "fsdp"}},
            "trainer.parallelism.data must be 'fsdp2', 'ddp', or 'none', got 'fsdp'",
        ),
        (
            {"parallelism": {"tensor": "two"}},
            "trainer.parallelism.tensor must be an integer >= 1, got 'two'",
        ),
        (
            {"parallelism": {"domain": 0}},
            "trainer.parallelism.domain must be an integer >= 1, got 0",
        ),
        (
            {"parallelism": {"domain": 1.5}},
            "trainer.parallelism.domain must be an integer >= 1, got 1.5",
        ),
        (
            {"parallelism": {"sp": 2, "dp": 1}},
            r"Unknown trainer.parallelism key\(s\): \['dp', 'sp'\] \(expected data",
        ),
    ],
)
def test_parse_rejects(trainer, message):
    with pytest.raises(ValueError, match=message):
        parse_parallelism_conf({"trainer": trainer})


@pytest.mark.parametrize(
    ("conf", "world", "expected"),
    [(section(), 8, 8), (section(tensor=2), 8, 4), (section(tensor=2, domain=2), 8, 2)],
)
def test_dp_world_size(conf, world, expected):
    assert dp_world_size(conf, world) == expected


def test_dp_world_size_shows_the_arithmetic_and_what_would_fit():
    message = (
        r"world_size=8 not divisible by tensor\*domain=6 \(tensor 2 x domain 3\); with "
        r"8 devices tensor\*domain can be 1, 2, 4, 8"
    )
    with pytest.raises(ValueError, match=message):
        dp_world_size(section(tensor=2, domain=3), 8)
    with pytest.raises(ValueError, match="not divisible by"):
        build_device_mesh(section(domain=3))


@pytest.mark.parametrize(
    ("conf", "shape", "groups"),
    [
        (section(), {DP_SHARD: 8}, {"dp": 8}),
        (section("ddp"), {DP_REPLICATE: 8}, {"dp": 8}),
        (section(tensor=2), {DP_SHARD: 4, TP: 2}, {"dp": 4, "tp": 2}),
        (
            section(tensor=2, domain=2),
            {DP_SHARD: 2, TP: 2, DOMAIN: 2},
            {"dp": 2, "tp": 2, "domain": 2},
        ),
        (section("ddp", domain=8), {DOMAIN: 8}, {"domain": 8}),
        (section("none", tensor=2), {TP: 2}, {"tp": 2}),
        (section("none"), {DP_SHARD: 1}, {}),
    ],
)
def test_only_degrees_above_one_are_built_outermost_first(conf, shape, groups):
    mesh, submeshes = build_device_mesh(conf)
    assert tuple(mesh.shape.items()) == tuple(shape.items()), mesh
    assert set(mesh.axis_types) == {AxisType.Auto}, mesh
    assert {name: sub.size for name, sub in submeshes.items()} == groups, submeshes


def test_a_submesh_is_the_group_of_the_first_device_of_this_process():
    devices = jax.devices()
    _, groups = build_device_mesh(section(tensor=2, domain=2))
    assert groups["domain"].devices.tolist() == [devices[0], devices[1]]
    assert groups["tp"].devices.tolist() == [devices[0], devices[2]]
    assert groups["dp"].devices.tolist() == [devices[0], devices[4]]


def test_the_section_may_be_a_config_class():
    mesh, _ = build_device_mesh(ParallelismConfig(data="ddp", tensor=2))
    assert dict(mesh.shape) == {DP_REPLICATE: 4, TP: 2}


def test_one_device():
    mesh, groups = build_device_mesh(section(), jax.devices()[:1])
    assert dict(mesh.shape) == {DP_SHARD: 1}
    assert groups == {}
    assert data_parallel_coords(mesh) == (0, 1)


@pytest.mark.parametrize(
    "conf",
    [section(), section(tensor=2), section(domain=4), section(tensor=2, domain=2)],
)
def test_ranks_are_row_major_with_domain_innermost(conf):
    mesh, _ = build_device_mesh(conf)
    tp, domain = conf["tensor"], conf["domain"]
    for g, device in enumerate(jax.devices()):
        coords = g // (tp * domain), (g // domain) % tp, g % domain
        grid = mesh.devices.reshape(8 // (tp * domain), tp, domain)
        assert grid[coords] is device, f"rank {g} is at another place than {coords}"


def test_the_sampler_contract_over_processes():
    """On four processes of two devices, tp and domain peers load the same dp rank."""
    devices = [FakeDevice(g, g // 2) for g in range(8)]
    for conf, expected in [
        (section(), [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (section(tensor=2), [(0,), (1,), (2,), (3,)]),
        (section(tensor=2, domain=2), [(0,), (0,), (1,), (1,)]),
        (section(domain=8), [(0,), (0,), (0,), (0,)]),
    ]:
        mesh, _ = build_device_mesh(conf, devices)
        for process, ranks in enumerate(expected):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(jax, "process_index", lambda process=process: process)
                assert local_dp_ranks(mesh) == ranks, (conf, process)
                dp_size = 8 // (conf["tensor"] * conf["domain"])
                assert data_parallel_coords(mesh) == (ranks[0], dp_size)
        assert shares_samples(mesh) == (conf["tensor"] * conf["domain"] > 2)


def test_a_process_outside_the_mesh_is_told_so():
    devices = [FakeDevice(g, g // 2) for g in range(4)]
    mesh, _ = build_device_mesh(section("none", tensor=2), devices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "process_index", lambda: 1)
        with pytest.raises(ValueError, match="process 1 owns none of the 2 devices"):
            local_dp_ranks(mesh)


def test_both_data_axes_make_one_rank():
    degrees = {DOMAIN: 2, DP_REPLICATE: 2, DP_SHARD: 2}
    mesh = mesh_of_degrees(degrees, [FakeDevice(g, g // 2) for g in range(8)])
    assert mesh.axis_names == (DP_REPLICATE, DP_SHARD, DOMAIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "process_index", lambda: 3)
        assert data_parallel_coords(mesh) == (3, 4)


def test_the_yaml_section_takes_the_further_keys():
    section = parse(ParallelismConfig, HSDP | {"dp_shard": 2}, "trainer.parallelism")
    mesh, groups = build_device_mesh(section)
    assert dict(mesh.shape) == {DP_REPLICATE: 2, DP_SHARD: 2, TP: 2}
    assert {name: dict(sub.shape) for name, sub in groups.items()} == {
        "dp": {DP_REPLICATE: 2, DP_SHARD: 2},
        "tp": {TP: 2},
    }
    conf = parse_parallelism_conf({"trainer": {"parallelism": HSDP}})
    assert conf == HSDP
    assert dp_world_size(HSDP, 8) == 4
    # Rank 5: data-parallel rank 2, the second of its tp peers.
    assert mesh.devices[1, 0, 1] is jax.devices()[5]
    cp = parse_parallelism_conf({"trainer": {"parallelism": {"cp": 2}}})
    assert cp == {"data": "none", "tensor": 1, "domain": 2}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"dp_shard": 0}, r"parallelism.dp_shard: must be at least 1, or -1 \(the re"),
        ({"dp_replicate": 0}, "parallelism.dp_replicate: must be at least 1, got 0"),
        ({"ep": "two"}, "parallelism.ep: must be an integer, got 'two'"),
        ({"dp_shard": 2}, "one replica, but dp_shard is 2; use data: fsdp2, or ddp"),
        ({"cp": 2, "domain": 4}, "cp is 2 and domain is 4, but they name one degree"),
        ({"tensor": 4, "etp": 2}, "etp is 2; expected tensor or 1, that is 4 or 1"),
        ({"cp": 4, "ulysses_degree": 3}, "ulysses_degree is 3, which does not divide"),
        ({"tp": 2}, "parallelism.tp: unknown key|Unknown trainer.parallelism key"),
    ],
)
def test_the_yaml_section_rejects(section, message):
    with pytest.raises(ValueError, match=message):
        parse(ParallelismConfig, section, "trainer.parallelism")
    with pytest.raises(ValueError, match=message):
        parse_parallelism_conf({"trainer": {"parallelism": section}})
