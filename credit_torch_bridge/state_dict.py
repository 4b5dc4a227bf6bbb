"""CREDIT's state dict of a model to our parameters and vectors, and back."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from credit_jax.models.architecture import Architecture
from credit_torch_bridge import crossformer, wxformer
from credit_torch_bridge.keys import Ignore, Plan, Rule, State, Vectors, make_plan
from credit_torch_bridge.statistics import with_statistics

Table = tuple[Rule | Ignore, ...]

# The key table of every `model.type` that converts.
TABLES: Mapping[str, Table] = MappingProxyType(
    {
        "crossformer": crossformer.TABLE,
        "wxformer": wxformer.TABLE,
        "wxformer_base": wxformer.TABLE,
    }
)


def plan_for(architecture: Architecture) -> Plan:
    """Which key of CREDIT's state dict is which parameter of an architecture.

    Raises:
        ValueError: no table for this model, or the table leaves a parameter open.
    """
    name = architecture.config.type
    if name not in TABLES:
        raise ValueError(
            f"model.type {name!r} has no key table; there are: {', '.join(TABLES)}"
        )
    declarations, matrices = architecture.declarations, architecture.matrices
    plan = make_plan(TABLES[name], declarations, matrices)
    return with_statistics(plan, architecture.norms)


def idle_keys(architecture: Architecture) -> list[str]:
    """CREDIT's keys of parameters that no output depends on.

    CREDIT builds the patch embedding of a crossformer always, and uses it only where a
    patch is more than one point.
    """
    config = architecture.config
    if getattr(config, "patch_height", 1) > 1 and getattr(config, "patch_width", 1) > 1:
        return []
    keys = plan_for(architecture).parameters.keys
    return [key for key in keys if key.startswith("cube_embedding.")]


def from_state_dict(
    architecture: Architecture, state_dict: Mapping[str, np.ndarray]
) -> tuple[State, Vectors]:
    """Our parameters from a state dict of CREDIT.

    Args:
        architecture: built from the same `model:` block.
        state_dict: CREDIT's keys to arrays; with spectral norm on, `weight_orig`,
            `weight_u` and `weight_v` in place of `weight`.

    Returns:
        (params, vectors): flat dict path -> array, and path -> {"u", "v"} of every
        matrix under spectral norm. dtypes stay as they are.

    Raises:
        ValueError: missing, unexpected or mismatched keys; one report lists all.
    """
    return plan_for(architecture).read(state_dict)


def to_state_dict(
    architecture: Architecture,
    params: Mapping[str, np.ndarray],
    vectors: Mapping[str, Mapping[str, np.ndarray]],
) -> State:
    """CREDIT's state dict from our parameters: the inverse of `from_state_dict`.

    Raises:
        ValueError: missing, unexpected or mismatched paths; one report lists all.
    """
    return plan_for(architecture).write(params, vectors)
