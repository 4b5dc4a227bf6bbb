"""Each loss beside CREDIT's or numpy's, with gradients, and on meshes."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.config.loss import LossConfig
from credit_jax.losses import LOSSES, build_loss, error_spread
from tests.losses import rows
from tests.losses.toys import TOYS
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, loss_and_gradient, of_pair

# Number of rows, degrees, dtype.
MESHES = {
    "13 rows": (13, {"dp": 2, "domain": 4}, np.float32),
    "16 rows": (16, {"domain": 2}, np.float32),
    "padding alone": (13, {"domain": 8}, np.float32),
    "float64": (13, {"dp": 2, "tp": 2, "domain": 2}, np.float64),
}


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    for name, (cls, *_) in TOYS.items():
        monkeypatch.setitem(LOSSES, name, cls)


@pytest.fixture(scope="module")
def scalers(credit, tmp_path_factory):
    """A folder with a file of scalers, and their variances."""
    folder = tmp_path_factory.mktemp("scalers")
    return folder, rows.write_scalers(folder)


def assert_same(found, expected, bounds, what):
    for name, value in expected.items():
        assert_close(found[name], value, bounds["gradient" in name], f"{what}: {name}")


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:.*is not scored")
@pytest.mark.parametrize("name", rows.CREDIT)
def test_as_credit(name, scalers):
    row, (folder, variances) = rows.CREDIT[name], scalers
    (own := folder / "own").mkdir(exist_ok=True)
    arrays = row.fields(8, row.members)
    expected = row.theirs(row, *arrays, own)
    found = rows.ours(row, arrays, variances=variances)
    parts = {key for key in found if key.startswith("loss_var")}
    assert parts == {key for key in expected if key.startswith("loss_var")} or (
        "learnable" not in name
    )
    assert_same(found, expected, row.bounds, name)


@pytest.mark.parametrize("name", rows.NUMPY)
def test_as_numpy(name):
    row = rows.NUMPY[name]
    arrays = row.fields(13, row.members)
    assert_same(
        rows.ours(row, arrays), row.theirs(row, *arrays, None), row.bounds, name
    )


@pytest.mark.slow(but=[f"{name}-13 rows" for name in rows.ON_MESHES])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", rows.ON_MESHES)
def test_same_on_every_mesh(name, mesh):
    row, (lat, degrees, dtype) = rows.ON_MESHES[name], MESHES[mesh]
    bounds = (1e-12, 1e-12) if dtype == np.float64 else row.bounds
    with jax.enable_x64(dtype == np.float64):
        arrays = [x.astype(dtype) for x in row.fields(lat, row.members)]
        found = rows.ours(row, arrays, make_mesh(**degrees))
        assert found["gradient"].dtype == dtype
        assert_same(found, rows.ours(row, arrays), bounds, f"{name} on {degrees}")


def test_dtypes_and_large_errors():
    """A bfloat16 prediction is scored in float32; log(cosh) does not overflow."""
    prediction, target = rows.fields(8, 1)
    low = jnp.asarray(prediction, jnp.bfloat16)
    value = of_pair(build_loss(LossConfig()))(low, target, field_context(8))
    assert value.dtype == jnp.float32
    expected = np.mean((np.asarray(low, np.float32) - target) ** 2)
    assert_close(value, expected, 1e-6, "bfloat16 prediction")
    loss = of_pair(build_loss(LossConfig(training_loss="logcosh")))
    far = jnp.full((1, 1, 1, 2, 2), 1000.0)
    value = loss(far, jnp.zeros_like(far), field_context(2))
    assert_close(value, 1000.0 - np.log(2.0), 1e-6, "log cosh 1000")


@pytest.mark.parametrize("name", rows.ELEMENTWISE)
def test_gradient_where_nothing_is_wrong(name):
    """It is 0, as PyTorch's; JAX's derivative of an absolute value there is 1."""
    loss = of_pair(build_loss(LossConfig(training_loss=name)))
    for target in (0.0, 0.5):
        y = jnp.full((1, 1, 1, 2, 2), target)
        assert not jax.grad(loss)(y, y, field_context(2)).any()


def credit_ring(monkeypatch, members, target):
    """Returns CREDIT's ring loss on every rank; the ranks run one after another."""
    import torch
    from credit.losses import crps

    found = []
    for rank in range(len(members)):
        others = iter(np.roll(members[::-1], rank, axis=0)[:-1])
        wire = SimpleNamespace(
            is_initialized=lambda: True,
            group=SimpleNamespace(WORLD=None),
            get_world_size=lambda group: len(members),
            get_rank=lambda group, rank=rank: rank,
            get_global_rank=lambda group, peer: peer,
            isend=None,
            irecv=None,
            P2POp=lambda op, buffer, peer, group: buffer,
        )

        def exchange(buffers, others=others):
            buffers[1].copy_(torch.tensor(np.ascontiguousarray(next(others))))
            return []

        wire.batch_isend_irecv = exchange
        monkeypatch.setattr(crps, "dist", wire)
        own = torch.tensor(members[rank], requires_grad=True)
        value = crps.RingCRPSLoss()(torch.tensor(target), own)
        value.backward()
        found.append((value.item(), own.grad.numpy()))
    return found


@pytest.mark.parametrize(("ranks", "domain"), [(2, 2), (4, 1)])
def test_ring_as_credit(ranks, domain, credit, monkeypatch):
    """Value and gradient are the means over ranks of CREDIT's."""
    members = draw((ranks, 3, 1, 13, 12), seed=3)
    target = draw((1, 3, 1, 13, 12), seed=4)
    theirs = credit_ring(monkeypatch, members[:, None], target)
    value, gradient = loss_and_gradient(
        build_loss(LossConfig(training_loss="ring-crps")),
        members,
        np.repeat(target, ranks, axis=0),
        make_mesh(dp=ranks, domain=domain),
    )
    assert_close(value, np.mean([own for own, _ in theirs]), 1e-5, "ring-crps")
    expected = np.concatenate([own for _, own in theirs]) / ranks
    assert_close(gradient, expected, 1e-5, "ring-crps, gradient")


def test_without_a_validation_loss_ranks_are_scored_one_by_one():
    """They validate on different samples."""
    prediction, target = rows.fields(13, 1)
    loss = build_loss(LossConfig(training_loss="ring-crps"), validation=True)
    value, _ = loss_and_gradient(loss, prediction, target, make_mesh(dp=2))
    assert_close(value, np.abs(prediction - target).mean(), 1e-6, "mae of two ranks")


@pytest.mark.parametrize("mesh", [{}, {"dp": 2, "domain": 4}], ids=str)
def test_spread_of_errors_is_that_of_the_log(torch, mesh):
    """CREDIT logs torch's standard deviation of all errors, with divisor N - 1."""
    prediction, target = rows.fields(5, 3)
    error = torch.tensor(prediction + 3.0 - np.repeat(target, 3, axis=0))
    found, _ = loss_and_gradient(
        lambda tree, context: error_spread(tree, context),
        prediction + 3.0,
        target,
        make_mesh(**mesh) if mesh else None,
        num_members=3,
    )
    assert_close(found, error.std().item(), 1e-6, f"std on {mesh}")


def test_weights_of_steps():
    assert LossConfig().step_weights(3) is None
    assert LossConfig(lead_weights=0.5).step_weights(3) == (1.0, 0.5, 0.25)
    assert LossConfig(lead_weights=[1, 0, 2]).step_weights(3) == (1.0, 0.0, 2.0)
