"""Round trips of CREDIT's state dicts."""

from __future__ import annotations

from typing import Any

import chex
import torch

from credit_jax import from_state_dict, to_state_dict
from credit_jax.models.conversion import key_map_for
from credit_jax.models.registry import build
from credit_jax.nn.parameters import BATCH_STATS, SPECTRAL_NORM
from credit_jax.nn.spectral_norm import spectral_norm_shapes


def assert_round_trip(
    credit: Any, block: dict[str, Any], credits: dict[str, Any] | None = None
) -> None:
    """Asserts a bitwise round trip of a CREDIT model, in values, shapes, key order.

    Args:
        credit, block: the reference and the `model` section.
        credits: that of CREDIT, where it differs.
    """
    model_def = build(block)
    model = credit.build_credit(credits or block, seed=1)
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    params, model_state = from_state_dict(model_def, state)
    shapes = {path: array.shape for path, array in params.items()}
    assert shapes == {k: tuple(d.shape) for k, d in model_def.param_specs.items()}
    assert sum(p.numel() for p in model.parameters()) == model_def.num_parameters
    assert set(model_state[SPECTRAL_NORM]) == set(model_def.matrices)
    assert set(model_state[BATCH_STATS]) == set(model_def.batch_stats)
    for path, param_spec in model_def.matrices.items():
        vectors = model_state[SPECTRAL_NORM][path]
        found = {name: vector.shape for name, vector in vectors.items()}
        assert found == spectral_norm_shapes(param_spec), path
    back = to_state_dict(model_def, params, model_state)
    assert list(back) == list(state), "the keys, or their order, differ"
    chex.assert_trees_all_equal(back, state, strict=True)
    names = [name for name, _ in model.named_parameters()]
    assert key_map_for(model_def).parameters.keys == names
    model.load_state_dict({key: torch.from_numpy(v) for key, v in back.items()})
