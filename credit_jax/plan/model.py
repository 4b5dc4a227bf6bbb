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
from credit_jax.parallel.mesh.axes import DOMAIN, EP, TP, MeshAxes
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.mesh.model_fit import ULYSSES, model_notes, model_problems
from credit_jax.plan.findings import Findings, unique
from credit_jax.plan.finetune import finetuned, note_on_frozen


@dataclass(frozen=True)
class ModelPlan:
    """A `model:` section and the degrees of its mesh.

    Attributes:
        dims: degrees of the mesh; None if they do not match the number of devices.
        config: the validated `model:` section; None if it does not parse.
        model_def: the model; None if its sizes are inconsistent.
        problems: errors that prevent the model from running, one line each.
        notes: information for the user, one line each, such as uneven rows.
    """

    dims: ParallelDims | None
    config: ModelConfig | None
    model_def: ModelDef | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def check(self, source: str) -> None:
        """Raises a `ConfigError` with all problems, if there are any."""
        if self.problems:
            raise ConfigError(self.problems, source)

    @property
    def axes(self) -> MeshAxes | None:
        """The mesh axes of a step; None if `dims` is None."""
        return self.dims.mesh_axes if self.dims is not None else None

    @property
    def grid(self) -> tuple[int, int] | None:
        """(latitudes, longitudes) of the model; None if its section does not parse."""
        if self.config is None:
            return None
        return self.config.output.height, self.config.output.width

    def build(self, devices: Sequence[Any], **options: Any) -> ParallelModel:
        """Builds the model on a mesh of devices; nothing is compiled.

        Args:
            devices: devices, at least as many as the degrees need; the first ones are
                used.
            **options: keyword arguments of `build_parallel_model`.

        Raises:
            ConfigError: the plan has problems.
        """
        self.check("model")
        assert self.dims is not None, "a plan without problems has degrees"
        assert self.model_def is not None, "a plan without problems has a model"
        used = devices[: self.dims.world_size]
        return build_parallel_model(self.model_def, self.dims, devices=used, **options)


def plan_model(
    section: Mapping[str, Any],
    parallelism: ParallelismConfig,
    *,
    num_devices: int,
    keep_whole: Sequence[str] = (),
    finetune: FinetuneConfig | None = None,
    where: str = "trainer.parallelism",
) -> ModelPlan:
    """Parses a model and checks it against the degrees of parallelism.

    Args:
        section: the `model:` section.
        parallelism: the validated `trainer.parallelism` section.
        num_devices: devices to plan for.
        keep_whole: patterns of parameter paths that FSDP never splits.
        finetune: section that says which parameters are frozen; None freezes none.
        where: name of the parallelism section in messages.

    Returns:
        The plan, with all problems, and with the parts that could be built.
    """
    findings = Findings()
    dims = config = model_def = None
    with findings.collecting(where):
        dims = ParallelDims.from_config(parallelism, num_devices)
    if dims is not None and dims.world_size < num_devices:
        findings.notes.append(
            f"data: none uses {dims.world_size} of {num_devices} devices"
        )
    with findings.collecting():
        config = parse_model(section)
    if config is not None:
        degrees = {
            TP: parallelism.tensor,
            DOMAIN: parallelism.domain,
            EP: parallelism.ep,
            ULYSSES: parallelism.ulysses_degree,
        }
        misfits = model_problems(config, degrees)
        findings.problems += misfits
        if not any(config.problems()):
            model_def = replace(define_model(config), keep_whole=tuple(keep_whole))
            findings.problems += (
                [] if misfits else model_def.validate(parallelism.tensor)
            )
            findings.problems += [
                f"trainer.fsdp.{line}" for line in model_def.unmatched()
            ]
            with findings.collecting():
                model_def = finetuned(model_def, finetune)
            if model_def.frozen:
                findings.notes.append(note_on_frozen(model_def))
            if parallelism.etp is not None and config.routing is None:
                findings.notes.append(
                    f"etp is {parallelism.etp}, but {config.type} has no experts"
                )
            ulysses = parallelism.ulysses_degree or 1
            findings.notes += model_notes(config, parallelism.domain, ulysses)
    return ModelPlan(
        dims, config, model_def, unique(findings.problems), unique(findings.notes)
    )
