"""CREDIT's state dict of a model to our parameters and vectors, and back."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from credit_jax.models.model_def import ModelDef
from credit_torch_bridge.checkpoint.batch_stats import with_statistics
from credit_torch_bridge.checkpoint.key_plan import (
    KeyPlan,
    SpectralNormState,
    State,
    make_key_plan,
)
from credit_torch_bridge.models import crossformer, wxformer
from credit_torch_bridge.models.key_table import KeyTable

# The key table of every `model.type` that converts.
TABLES: Mapping[str, KeyTable] = MappingProxyType(
    {
        "crossformer": crossformer.TABLE,
        "wxformer": wxformer.TABLE,
        "wxformer_base": wxformer.TABLE,
    }
)


def key_plan_for(model_def: ModelDef) -> KeyPlan:
    """Which key of CREDIT's state dict is which parameter of an architecture.

    Raises:
        ValueError: no table for this model, or the table leaves a parameter open.
    """
    name = model_def.config.type
    if name not in TABLES:
        raise ValueError(
            f"model.type {name!r} has no key table; there are: {', '.join(TABLES)}"
        )
    param_specs, matrices = model_def.param_specs, model_def.matrices
    plan = make_key_plan(TABLES[name], param_specs, matrices)
    return with_statistics(plan, model_def.norms)


def idle_keys(model_def: ModelDef) -> list[str]:
    """CREDIT's keys of parameters that no output depends on.

    CREDIT builds the patch embedding of a crossformer always, and uses it only where a
    patch is more than one point.
    """
    config = model_def.config
    if getattr(config, "patch_height", 1) > 1 and getattr(config, "patch_width", 1) > 1:
        return []
    keys = key_plan_for(model_def).parameters.keys
    return [key for key in keys if key.startswith("cube_embedding.")]


def from_state_dict(
    model_def: ModelDef, state_dict: Mapping[str, np.ndarray]
) -> tuple[State, SpectralNormState]:
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
    return key_plan_for(model_def).read(state_dict)


def to_state_dict(
    model_def: ModelDef,
    params: Mapping[str, np.ndarray],
    spectral_norm_state: Mapping[str, Mapping[str, np.ndarray]],
) -> State:
    """CREDIT's state dict from our parameters: the inverse of `from_state_dict`.

    Raises:
        ValueError: missing, unexpected or mismatched paths; one report lists all.
    """
    return key_plan_for(model_def).write(params, spectral_norm_state)
