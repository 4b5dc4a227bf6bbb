"""Converts CREDIT's state dict of a model to parameters and model state, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from credit_jax.config.base import nearest_key
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.models.registry import MODELS, torch_model
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.state_dict.key_map import (
    Arrays,
    HostModelState,
    KeyEntry,
    KeyMap,
    make_key_map,
    with_statistics,
)
from credit_jax.state_dict.key_table import SAME, Arrangement


def key_map_for(model_def: ModelDef) -> KeyMap:
    """Returns the mapping between CREDIT's state dict and the arrays of a model."""
    model = torch_model(model_def.config.type)
    key_map = make_key_map(model.key_table, model_def.param_specs, model_def.matrices)
    frozen = frozenset(model_def.param_specs.keys() - model_def.trainable.keys())
    key_map = replace(
        key_map,
        renames=model.renames,
        frozen=frozen,
        lists_frozen=model.lists_frozen,
        constants=model.constants(model_def.config),
    )
    return with_statistics(key_map, model_def.batch_stats)


def credit_key(
    path: str, model: ModelDef | ParallelModel | None = None
) -> tuple[str, ...]:
    """Returns CREDIT's key of a parameter: one for each layer if several are stacked.

    Args:
        path: path of the parameter, a key of the weights.
        model: the model, whose config says which of CREDIT's modules there are; may be
            left out if all models that have the parameter have one key for it.

    Raises:
        ValueError: the model has no such parameter, CREDIT has no such model, or the
            key depends on the model and none is given; lists the keys.

    >>> credit_key("up_blocks/0/conv/bias")
    ('up_block1.conv.bias',)
    >>> from credit_jax import ParallelDims, build_parallel_model
    >>> section = {"type": "wxformer", "image_height": 320, "image_width": 640}
    >>> model = build_parallel_model(section, ParallelDims())
    >>> credit_key("stages/0/embed/convs/1/bias", model)
    ('layers.0.0.convs.1.1.bias',)
    >>> credit_key("stages/0/blocks/short_attention/norm/scale", model)
    ('layers.0.1.layers.0.0.norm.g', 'layers.0.1.layers.1.0.norm.g')
    """
    if model is None:
        # The key, if no config changes it.
        models_by_key: dict[str, list[str]] = {}
        for name, entry in sorted(MODELS.items()):
            for row in entry.key_table.key_table if entry.key_table else ():
                if (at := row.match(path)) is None:
                    continue
                key = row.torch.format(**at, d="{layer}")
                models_by_key.setdefault(key, []).append(name)
                is_matrix = key.endswith("weight") and row.arrangement != SAME
                if is_matrix and "use_spectral_norm" in entry.config.model_fields:
                    models_by_key.setdefault(f"{key}_orig", []).append(name)
        if not models_by_key:
            raise ValueError(f"no model of CREDIT has a parameter {path!r}")
        key, *more = models_by_key
        if more or "{layer}" in key:
            pairs = models_by_key.items()
            listed = "; ".join(f"{k} ({', '.join(models)})" for k, models in pairs)
            raise ValueError(
                f"CREDIT's key of {path!r} depends on the model: {listed}; give the "
                f"model: credit_key({path!r}, model)"
            )
        return (key,)
    model_def = model.model_def if isinstance(model, ParallelModel) else model
    table = torch_model(model_def.config.type).key_table
    if path not in model_def.param_specs:
        raise ValueError(
            f"the model has no parameter {path!r}; "
            f"{nearest_key(path, model_def.param_specs)}"
        )
    one = {path: model_def.param_specs[path]}
    return tuple(make_key_map(table, one, model_def.matrices).parameters.keys)


def idle_keys(model_def: ModelDef) -> list[str]:
    """Returns CREDIT's keys of parameters that no output depends on."""
    idle = torch_model(model_def.config.type).idle_modules(model_def.config)
    if not idle:
        return []
    keys = key_map_for(model_def).parameters.keys
    return [key for key in keys if key.startswith(tuple(f"{name}." for name in idle))]


def from_state_dict(
    model_def: ModelDef, state_dict: Mapping[str, np.ndarray]
) -> tuple[Arrays, HostModelState]:
    """Converts a state dict of CREDIT to parameters and model state.

    Args:
        model_def: built from the same `model:` section.
        state_dict: CREDIT's keys to arrays; with spectral norm on, `weight_orig`,
            `weight_u` and `weight_v` in place of `weight`.

    Returns:
        (params, model_state): path -> array, and the collections of
        `credit_jax.nn.parameters`. dtypes are kept.

    Raises:
        ValueError: missing, unexpected or mismatched keys; one report lists all.

    >>> weights = jax.device_get((params, model_state))
    >>> state = credit_jax.to_state_dict(model.model_def, *weights)
    >>> back, _ = credit_jax.from_state_dict(model.model_def, state)
    >>> bool((back["linear/kernel"] == params["linear/kernel"]).all())
    True
    """
    return key_map_for(model_def).read(state_dict)


def to_state_dict(
    model_def: ModelDef,
    params: Mapping[str, np.ndarray],
    model_state: HostModelState,
) -> Arrays:
    """Converts parameters to CREDIT's state dict: the inverse of `from_state_dict`.

    Raises:
        ValueError: missing, unexpected or mismatched paths; one report lists all.

    >>> weights = jax.device_get((params, model_state))
    >>> list(credit_jax.to_state_dict(model.model_def, *weights))
    ['linear.weight']
    """
    return key_map_for(model_def).write(params, model_state)


def native_key_map(
    model_def: ModelDef, specs: Mapping[str, ParamSpec] | None = None
) -> KeyMap:
    """Returns the key map of what CREDIT lacks: keys are paths, arrays stay."""
    # Arrays of the model state are named "path.leaf", as in "head/norm.mean".
    entries = [
        KeyEntry(path, path, _unmoved(spec.shape), spec.shape)
        for path, spec in (model_def.param_specs if specs is None else specs).items()
    ]
    entries += [
        KeyEntry(
            f"{path}.{leaf}",
            path,
            _unmoved(array.shape),
            tuple(array.shape),
            collection=collection,
            leaf=leaf,
        )
        for collection, arrays in model_def.model_state_shapes.items()
        for path, leaves in arrays.items()
        for leaf, array in leaves.items()
    ]
    return KeyMap(tuple(entries))


def _unmoved(shape: tuple[int, ...]) -> Arrangement:
    letters = " ".join(f"d{i}" for i in range(len(shape)))
    return Arrangement(f"{letters} -> {letters}")
