"""What a run of a config gives on a mesh: all that it logs, and its last state.

The reference trains for two epochs. Every other mesh goes on from the first checkpoint
of the reference, within the first epoch where that has several updates, so that its
logs show the order of samples after a resume and in an epoch from its beginning.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from credit_jax.certification.measure import Arrays, flat, trained_arrays
from credit_jax.certification.meshes import dims_of
from credit_jax.certification.subject import wide
from credit_jax.checkpoint import CheckpointStore
from credit_jax.config import Config, build_config
from credit_jax.config.yaml_file import read_yaml
from credit_jax.parallel.params.precision import Precision
from credit_jax.plan import plan_run
from credit_jax.training.display import Display
from credit_jax.training.loggers import LOG_NAME
from credit_jax.training.loop import TIME_COLUMNS
from credit_jax.training.records import RECORDS_NAME, read_records
from credit_jax.training.run import run_training
from credit_jax.training.run_weights import open_weights
from credit_jax.training.setup import Setup, prepare
from credit_jax.training.state import TrainState

_EPOCHS = 2
# Of the records of updates; others are about time and memory.
_RECORDED = ("epoch", "batch", "loss", "grad_norm", "learning_rate", "loss_scale")


def measure_run(
    path: Path,
    mesh: str,
    devices: Sequence[Any],
    *,
    folder: Path,
    reference: Path | None,
    x64: bool = False,
    in_dtype: bool = False,
) -> dict[str, Arrays]:
    """Trains a config on a mesh.

    Args:
        path: the YAML file.
        mesh: name of the mesh.
        devices: devices, at least as many as the mesh has.
        folder: folder of the run.
        reference: folder of the run of the reference; None on the reference itself.
        x64: compute in float64; needs `jax_enable_x64`.
        in_dtype: compute in the dtype of the config, instead of float32.

    Returns:
        `Measured.logged`, `trained` and `opened`; without `in_dtype` of 16 bits, the
        first alone.
    """
    config = _config_on(mesh, path, folder, in_dtype=in_dtype)
    num_devices = dims_of(mesh).world_size
    plan = plan_run(config, num_devices=num_devices, begins=False)
    setup = prepare(plan, devices[:num_devices])
    if x64:
        setup = _wide(setup)
    if reference is not None:
        _copy_first(reference, folder)
    outcome = run_training(
        setup,
        folder,
        Display(Console(file=StringIO()), silent=True),
        resume=reference is not None,
    )
    numbers = {"logged": _logged(folder)}
    if in_dtype:
        return numbers
    weights = open_weights(reference or folder)
    # A checkpoint has the sums of weights and adapters.
    definition = replace(setup.model.model_def, low_rank=None)
    model = replace(setup.model, model_def=definition)
    return {
        **numbers,
        "trained": trained_arrays(outcome.state),
        "opened": flat(*weights.restore(model)),
    }


def _config_on(mesh: str, path: Path, folder: Path, *, in_dtype: bool) -> Config:
    """The config of a certificate, whose batches are those of one device, on a mesh."""
    mapping, dims = read_yaml(path), dims_of(mesh)
    trainer = dict(mapping["trainer"])
    shared = build_config(mapping).shares_batches
    ranks = 1 if shared else dims.batch_size
    data = "fsdp2" if dims.dp_shard > 1 else "ddp" if dims.batch_size > 1 else "none"
    trainer |= {
        "parallelism": {
            "data": data,
            "dp_replicate": dims.dp_replicate,
            "dp_shard": dims.dp_shard,
            "ep": dims.ep,
            "etp": dims.etp,
            "tensor": dims.tp,
            "domain": dims.domain,
            "ulysses_degree": dims.ulysses_degree,
        },
        "num_devices": dims.world_size,
        "epochs": _EPOCHS,
        "num_epoch": _EPOCHS,
        "save_every_steps": 2,
        "stopping_patience": _EPOCHS,
        **{
            key: trainer[key] // ranks
            for key in ("train_batch_size", "valid_batch_size")
        },
    }
    if not in_dtype:
        trainer |= {"amp": False, "fp8": False}
        trainer.pop("fsdp2_mp_policy", None)
    return build_config({**mapping, "trainer": trainer, "save_loc": str(folder)})


def _copy_first(reference: Path, folder: Path) -> None:
    """Copies a run as if it had been killed after its first checkpoint."""
    store = CheckpointStore(reference, verify=False)
    first = store.path(store.steps()[0])
    store.close()

    def others(parent: str, names: Sequence[str]) -> list[str]:
        of_steps = Path(parent) == first.parent
        return [n for n in names if of_steps and n.isdigit() and n != first.name]

    shutil.copytree(reference, folder, ignore=others, dirs_exist_ok=True)


def _logged(folder: Path) -> Arrays:
    """The numbers of the logs by their place."""
    numbers: dict[str, Any] = {}
    with (folder / LOG_NAME).open() as file:
        for row in csv.DictReader(file):
            numbers |= {
                f"{name} of epoch {row['epoch']}": value
                for name, value in row.items()
                if name not in TIME_COLUMNS and value
            }
    for record in read_records(folder / RECORDS_NAME):
        names = [n for n in _RECORDED if record.get(n) is not None and "loss" in record]
        numbers |= {f"{n} at step {record['step']}": record[n] for n in names}
    return {name: np.asarray(value, float) for name, value in numbers.items()}


class _WideSetup(Setup):
    """A setup that trains in float64."""

    def fresh_state(self, base: Any = None) -> TrainState:
        return wide(super().fresh_state(base))

    def _placed(self, arrays: dict[str, Any], *, shared: bool = False) -> Any:
        return super()._placed(wide(arrays), shared=shared)


def _wide(setup: Setup) -> Setup:
    precision = Precision.of("float64")
    config = replace(setup.model.parallel_config, precision=precision)
    model = replace(setup.model, parallel_config=config)
    stages = tuple(map(_wide, setup.stages))
    loaders = setup.train_loader, setup.valid_loader
    return _WideSetup(setup.plan, model, *loaders, stages)
