"""`FieldContext`: functions of whole fields give equal results on every mesh."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from credit_jax.named_fields import ChannelLayout, latitude_weights
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, run_on_mesh

LAT, LON = 13, 5
LAYOUT = ChannelLayout.of({"T": 2, "SP": 1})
WEIGHTS = latitude_weights(np.linspace(85.0, -70.0, LAT))
FACTORS = np.array([2.0, 0.5, 3.0], np.float32)
MESHES = {
    "one device": {},
    "dp 2": {"dp": 2},
    "3 shards": {"domain": 3},
    "8 shards": {"domain": 8},
    "dp 2 x tp 2 x 2 shards": {"dp": 2, "tp": 2, "domain": 2},
}


@pytest.mark.parametrize("name", MESHES)
def test_means_and_whole_fields(name):
    x = draw((4, 3, 2, LAT, LON)) + 1
    mesh = make_mesh(**MESHES[name])
    context = field_context(
        LAT, mesh, channels=LAYOUT, row_weights=WEIGHTS, channel_weights=FACTORS
    )

    def run(x):
        rows = context.row_mean(x)
        whole = context.gather_rows(x)
        return (
            context.mean(x),
            context.channel_mean(x),
            context.variable_mean(x),
            context.data_mean(rows),
            context.gathered().mean(whole),
            context.sample_mean(x),
            rows,
            whole,
        )

    same, samples = PartitionSpec(), PartitionSpec(MeshAxes.from_mesh(mesh).data)
    specs = (*(same,) * 5, *(samples,) * 3)
    found = run_on_mesh(run, mesh, x, out_specs=specs)
    weighted = x.astype(np.float64) * WEIGHTS[:, None]
    channels = weighted.mean(axis=(0, 2, 3, 4))
    mean = (channels * FACTORS).mean()
    expected = {
        "mean": mean,
        "channel_mean": channels,
        "variable_mean": [channels[:2].mean(), channels[2]],
        "data_mean": weighted.mean(axis=(0, 3)),
        "mean of gathered rows": mean,
        "sample_mean": weighted.mean(axis=(3, 4)),
        "row_mean": weighted.mean(axis=3),
    }
    for (what, value), ours in zip(expected.items(), found, strict=False):
        assert_close(ours, value, 1e-6, f"{what} on {name}")
    assert np.array_equal(found[-1], x), "all rows in order, without padding"


def test_members_are_beside_their_sample():
    prediction = jnp.arange(6.0).reshape(6, 1, 1, 1, 1)
    context = field_context(1, num_members=3)
    members = context.members(prediction)
    assert members.shape == (2, 3, 1, 1, 1, 1)
    assert members[1].ravel().tolist() == [3.0, 4.0, 5.0]
    repeated = context.repeat_members(prediction[:2])
    assert repeated.ravel().tolist() == [0.0] * 3 + [1.0] * 3
