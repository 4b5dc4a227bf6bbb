"""The plan of a model and its degrees of parallelism, without weights or devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from credit_jax.config import ConfigError
from credit_jax.config.finetune import FinetuneConfig
from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.models.common.config import ModelConfig
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.models.registry import define_model, parse_model
from credit_jax.parallel.mesh.device_mesh import DOMAIN, EP, TP, MeshAxes
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.mesh.model_fit import ULYSSES, model_notes, model_problems
from credit_jax.plan.findings import Findings, check_problems, together, unique
from credit_jax.plan.finetune import finetuned, note_on_frozen


@dataclass(frozen=True)
class ModelPlan:
    """A `model:` section and the degrees of its mesh.

    Attributes:
        dims: degrees of the mesh.
        config: the validated `model:` section.
        model_def: the model.
        notes: information for the user, one line each, such as uneven rows.
    """

    dims: ParallelDims
    config: ModelConfig
    model_def: ModelDef
    notes: tuple[str, ...] = ()

    @property
    def axes(self) -> MeshAxes:
        """The mesh axes of a step."""
        return self.dims.mesh_axes

    @property
    def grid(self) -> tuple[int, int]:
        """(latitudes, longitudes) of the model."""
        return self.config.output.height, self.config.output.width

    def build(self, devices: Sequence[Any], **options: Any) -> ParallelModel:
        """Builds the model on a mesh of devices; nothing is compiled.

        Args:
            devices: devices, at least as many as the degrees need; the first ones are
                used.
            **options: keyword arguments of `build_parallel_model`.
        """
        used = devices[: self.dims.world_size]
        return build_parallel_model(self.model_def, self.dims, devices=used, **options)


def plan_model(
    section: Mapping[str, Any],
    parallelism: ParallelismConfig,
    *,
    num_devices: int,
    keep_whole: Sequence[str] = (),
    finetune: FinetuneConfig | None = None,
    key: str = "trainer.parallelism",
) -> ModelPlan:
    """Parses a model and checks it against the degrees of parallelism.

    Args:
        section: the `model:` section.
        parallelism: the validated `trainer.parallelism` section.
        num_devices: devices to plan for.
        keep_whole: patterns of parameter paths that FSDP never splits.
        finetune: section that says which parameters are frozen; None freezes none.
        key: name of the parallelism section in messages.

    Raises:
        ConfigError: the model cannot run on the mesh; lists the problems.
    """
    degrees = {
        TP: parallelism.tensor,
        DOMAIN: parallelism.domain,
        EP: parallelism.ep,
        ULYSSES: parallelism.ulysses_degree,
    }

    def sound_config() -> ModelConfig:
        config = parse_model(section)
        check_problems(model_problems(config, degrees))
        return config

    def mesh_dims() -> ParallelDims:
        findings = Findings()
        with findings.collecting(key):
            return ParallelDims.from_config(parallelism, num_devices)
        raise ConfigError(findings.problems)

    dims: ParallelDims
    config: ModelConfig
    dims, config = together(mesh_dims, sound_config)
    model_def = replace(define_model(config), keep_whole=tuple(keep_whole))
    problems = model_def.validate(parallelism.tensor)
    check_problems(
        [*problems, *(f"trainer.fsdp.{line}" for line in model_def.unmatched())]
    )
    model_def, notes = finetuned(model_def, finetune), list[str]()
    if dims.world_size < num_devices:
        notes.append(f"data: none uses {dims.world_size} of {num_devices} devices")
    if model_def.frozen:
        notes.append(note_on_frozen(model_def))
    if parallelism.etp is not None and config.routing is None:
        notes.append(f"etp is {parallelism.etp}, but {config.type} has no experts")
    ulysses = parallelism.ulysses_degree or 1
    notes += model_notes(config, parallelism.domain, ulysses)
    return ModelPlan(dims, config, model_def, unique(notes))
