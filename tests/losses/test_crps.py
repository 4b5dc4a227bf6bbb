"""CRPS losses against CREDIT's, values and gradients, and on every mesh."""

from functools import partial
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.config.loss import LossConfig
from credit_jax.losses import build_loss, error_spread
from tests.losses.cases import credit_loss, our_loss
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, loss_and_gradient

LAT, LON, CHANNELS, MEMBERS = 13, 12, 3, 3
SECTIONS = {
    "KCRPS": {"training_loss": "KCRPS"},
    "KCRPS, biased": {
        "training_loss": "KCRPS",
        "training_loss_parameters": {"biased": True},
    },
    "almost fair": {"training_loss": "almost-fair-crps"},
    "almost fair, 0.95": {
        "training_loss": "almost-fair-crps",
        "training_loss_parameters": {"alpha": 0.95},
    },
}
MESHES = [{"domain": 2}, {"domain": 4}, {"domain": 8}, {"dp": 2, "domain": 4}]


def fields(lat: int = LAT, batch: int = 2) -> tuple[np.ndarray, np.ndarray]:
    shape = (CHANNELS, 1, lat, LON)
    target = draw((batch, *shape), seed=1)
    return 2 * draw((batch * MEMBERS, *shape), seed=2), target


@pytest.mark.parametrize("name", SECTIONS)
def test_equals_credit(name, credit, tmp_path):
    prediction, target = fields()
    value, gradient = credit_loss(
        tmp_path, np.zeros(LAT), SECTIONS[name], prediction, target
    )
    loss = our_loss(SECTIONS[name], np.zeros(LAT))
    ours, own_gradient = loss_and_gradient(
        loss, prediction, target, num_members=MEMBERS
    )
    assert_close(ours, value, 1e-6, name)
    assert_close(own_gradient, gradient, 1e-5, f"{name}, gradient")


@pytest.mark.parametrize("name", ["almost fair", "almost fair, 0.95"])
@pytest.mark.parametrize("equal", [2, 3])
def test_equal_members_do_not_repel_each_other(name, equal, credit, tmp_path):
    """As those of a model whose noise has no effect yet; a member may be the target."""
    prediction, target = fields()
    members = prediction.reshape(len(target), MEMBERS, *target.shape[1:])
    members[:, -equal:] = members[:, -1:]
    members[:, 0, 0] = target[:, 0]
    _, gradient = credit_loss(
        tmp_path, np.zeros(LAT), SECTIONS[name], prediction, target
    )
    loss = our_loss(SECTIONS[name], np.zeros(LAT))
    _, own_gradient = loss_and_gradient(loss, prediction, target, num_members=MEMBERS)
    assert_close(own_gradient, gradient, 1e-6, f"{name}, gradient, {equal} equal")


@pytest.mark.parametrize("validation", [False, True])
def test_weighted_kcrps_equals_credit(validation, credit, tmp_path):
    """With weights CREDIT's validation uses it, too, whatever `validation_loss` is."""
    latitude, (prediction, target) = np.linspace(85, -80, 8), fields(8)
    prediction, target = (np.repeat(x, 3, axis=1)[:, :8] for x in (prediction, target))
    section = {
        "training_loss": "KCRPS",
        "validation_loss": "mse",
        "use_latitude_weights": True,
    }
    value, gradient = credit_loss(
        tmp_path, latitude, section, prediction, target, validation=validation
    )
    loss = our_loss(section, latitude, validation=validation)
    ours, own_gradient = loss_and_gradient(
        loss, prediction, target, num_members=MEMBERS
    )
    assert_close(ours, value, 1e-6, "weighted KCRPS")
    assert_close(own_gradient, gradient, 1e-5, "weighted KCRPS, gradient")


@pytest.mark.slow(
    but=[
        "KCRPS-16-{'dp': 2, 'domain': 4}",
        "KCRPS-13-{'domain': 4}",
        "almost fair, 0.95-13-{'domain': 4}",
    ]
)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("lat", [16, 13])
@pytest.mark.parametrize("name", ["KCRPS", "almost fair, 0.95"])
def test_same_on_every_mesh(name, lat, mesh):
    loss, arrays = build_loss(LossConfig(**SECTIONS[name])), fields(lat)
    own = partial(loss_and_gradient, loss, *arrays, num_members=MEMBERS)
    (value, gradient), (serial, serial_gradient) = own(make_mesh(**mesh)), own()
    assert_close(value, serial, 1e-6, f"{name} on {mesh}")
    assert_close(gradient, serial_gradient, 1e-6, f"{name}, gradient")


def test_one_member_is_refused():
    with pytest.raises(ValueError, match=r"training_loss: KCRPS scores an ensemble"):
        build_loss(LossConfig(training_loss="KCRPS"), num_members=1)
    tree = {"y_pred": jnp.zeros((2, 1, 1, 4, 4)), "y": jnp.zeros((2, 1, 1, 4, 4))}
    with pytest.raises(ValueError, match=r"set trainer\.ensemble_size to 2 or more"):
        build_loss(LossConfig(training_loss="KCRPS"))(tree, field_context(4))


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


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("domain", [1, 2])
def test_ring_equals_credit(ranks, domain, credit, monkeypatch):
    """Value and gradient are the means over ranks of CREDIT's."""
    members = draw((ranks, CHANNELS, 1, LAT, LON), seed=3)
    target = draw((1, CHANNELS, 1, LAT, LON), seed=4)
    theirs = credit_ring(monkeypatch, members[:, None], target)
    mesh = make_mesh(dp=ranks, domain=domain)
    loss = build_loss(LossConfig(training_loss="ring-crps"))
    value, gradient = loss_and_gradient(
        loss, members, np.repeat(target, ranks, axis=0), mesh
    )
    assert_close(value, np.mean([own for own, _ in theirs]), 1e-5, "ring-crps")
    expected = np.concatenate([own for _, own in theirs]) / ranks
    assert_close(gradient, expected, 1e-5, "ring-crps, gradient")


def test_without_a_validation_loss_ranks_are_scored_one_by_one():
    """They validate on different samples."""
    prediction, target = draw((2, 3, 1, LAT, LON), seed=5), draw((2, 3, 1, LAT, LON))
    loss = build_loss(LossConfig(training_loss="ring-crps"), validation=True)
    value, _ = loss_and_gradient(loss, prediction, target, make_mesh(dp=2))
    assert_close(value, np.abs(prediction - target).mean(), 1e-6, "mae of two ranks")


@pytest.mark.parametrize("mesh", [{}, *MESHES], ids=str)
def test_spread_of_errors_is_that_of_the_log(torch, mesh):
    """CREDIT logs torch's standard deviation of all errors, with divisor N - 1."""
    prediction, target = fields(5)
    error = torch.tensor(prediction + 3.0 - np.repeat(target, MEMBERS, axis=0))
    ours, _ = loss_and_gradient(
        lambda tree, context: error_spread(tree, context),
        prediction + 3.0,
        target,
        make_mesh(**mesh) if mesh else None,
        num_members=MEMBERS,
    )
    assert_close(ours, error.std().item(), 1e-6, f"std on {mesh}")


def test_ring_of_one_rank_is_the_mean_absolute_error():
    prediction, target = fields()
    arrays = prediction[:2], target
    loss = build_loss(LossConfig(training_loss="ring-crps"))
    value, _ = loss_and_gradient(loss, *arrays)
    assert_close(value, np.abs(arrays[0] - arrays[1]).mean(), 1e-6, "one rank")
