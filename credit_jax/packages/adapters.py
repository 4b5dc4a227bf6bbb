"""Packages of adapters alone: what LoRA trained, and which weights it needs besides."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from credit_jax.checkpoint.artifact import Artifact
from credit_jax.config import Config
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build
from credit_jax.nn.low_rank import LowRank, is_matrix, merged
from credit_jax.packages.manifest import AdapterRecord
from credit_jax.packages.weights import read_weights
from credit_jax.plan.finetune import check_type, finetuned
from credit_jax.state_dict.key_map import Arrays, HostModelState
from credit_jax.state_dict.key_table import compare_shapes


def model_with_adapters(config: Config) -> ModelDef:
    """Returns the model of a run with LoRA, with its frozen parameters and adapters."""
    finetune, origin = config.trainer.finetune, "--adapters: trainer.finetune"
    if finetune is None or finetune.lora is None:
        raise ValueError(f"{origin}.lora: missing; the run has no adapters")
    if finetune.new_channels is not None:
        raise ValueError(
            f"{origin}.new_channels: the base has other channels, so the frozen "
            "weights are not all its own; make a package of all weights, without "
            "--adapters"
        )
    return finetuned(build(config.model), finetune)


def adapter_record(
    config: Config, model_def: ModelDef, params: Arrays
) -> AdapterRecord:
    """Returns what a package says of adapters, with `params` of base and training."""
    finetune, low_rank = config.trainer.finetune, model_def.low_rank
    assert finetune is not None, "a run with adapters"
    assert low_rank is not None, "and so is its model"
    adapters = low_rank.param_specs(model_def.param_specs)
    trained = model_def.trainable.keys() - adapters.keys()
    lacking = params.keys() - model_def.trainable.keys()
    return AdapterRecord(
        low_rank.rank,
        low_rank.scale,
        sorted(low_rank.targets),
        sorted(trained),
        Path(finetune.base).name,
        finetune.weights,
        digest_of_base({path: params[path] for path in lacking}),
    )


def digest_of_base(params: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the paths, dtypes, shapes and bytes of arrays."""
    # So a base is known in whatever file it is: a run, a package, or one of PyTorch.
    total = hashlib.sha256()
    for path in sorted(params):
        array = np.ascontiguousarray(params[path])
        total.update(f"{path} {array.dtype.name} {array.shape}\n".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def with_base(
    path: Path, record: AdapterRecord, model_def: ModelDef, base: Artifact
) -> tuple[Arrays, HostModelState]:
    """Reads adapters and adds them to the weights of their base: all by path, state."""
    specs = model_def.param_specs
    matrices = {name for name, spec in specs.items() if is_matrix(spec)}
    unknown = sorted(({*record.targets} - matrices) | ({*record.trained} - {*specs}))
    if unknown:
        raise ValueError(
            f"{path.parent}: adapters of {unknown} do not fit model.yml beside it; get "
            "the package again"
        )
    low_rank = LowRank(record.rank, record.scale, frozenset(record.targets))
    frozen = frozenset(specs.keys() - {*record.trained})
    with_adapters = replace(model_def, frozen=frozen, low_rank=low_rank)
    trained, model_state = read_weights(path, with_adapters)
    weights = {**read_base(record, with_adapters, base), **trained}
    return jax.device_get(merged(weights, low_rank, specs)), model_state


def read_base(record: AdapterRecord, model_def: ModelDef, base: Artifact) -> Arrays:
    """Reads the weights that a package of adapters lacks, by path."""
    check_type(base.files, model_def.config.type)
    weights, _ = base.weights
    specs = model_def.param_specs
    lacking = {name: specs[name].shape for name in specs.keys() - model_def.trainable}
    weights = {name: x for name, x in weights.items() if name in lacking}
    problems = compare_shapes({name: x.shape for name, x in weights.items()}, lacking)
    digest = "" if problems else digest_of_base(weights)
    if digest != record.base_digest:
        why = problems[0] if problems else f"their digest is {digest}"
        raise ValueError(
            f"{base.files.key}: the weights of {base.where} are not those that the "
            f"adapters were trained on: {why}, expected {record.base_digest}; give "
            f"{record.base}, as it was then"
        )
    return weights
