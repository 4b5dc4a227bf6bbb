"""Names of meshes."""

import pytest

from benchmarks.meshes import num_data, num_devices, parse_mesh


def test_names_of_meshes():
    assert parse_mesh("1") == {}
    assert parse_mesh("dp2xtp2xdomain3") == {"dp_shard": 2, "tp": 2, "domain": 3}
    assert num_devices("ddp4xdomain2") == 8
    assert num_data("ddp2xep2xdomain2") == 4
    for wrong in ("dp", "2", "dp2xdp4", "domain0", "dp2-tp2"):
        with pytest.raises(ValueError, match="expected 1, or factors dpN, ddpN"):
            parse_mesh(wrong)
