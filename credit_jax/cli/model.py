"""The trained model of a command that forecasts, and the plan of its forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from credit_jax.checkpoint.artifact import Artifact
from credit_jax.checkpoint.run import RunArtifact
from credit_jax.cli.commands import (
    OVERRIDES,
    MeshOptions,
    ProcessOptions,
    WeightsOptions,
    option,
    print_lines,
    warnings_as_notes,
)
from credit_jax.config import Config, dump_config, load_config
from credit_jax.config.data import raw_ranges
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.forecast import Forecaster
from credit_jax.forecast.archive import TRAINING_DATES, Archive, identity_of, software
from credit_jax.forecast.delivery import ForecastStore
from credit_jax.forecast.netcdf import NetcdfStore
from credit_jax.forecast.outputs import Outputs, outputs_of
from credit_jax.forecast.repository import RepositoryArchive
from credit_jax.forecast.zarr_store import ZarrStore
from credit_jax.io.mirror import local_path
from credit_jax.io.netcdf import attribute_value
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.packages.package import Package, open_artifact, open_package
from credit_jax.plan.channels import check_forecast_units
from credit_jax.plan.finetune import kind_of
from credit_jax.plan.forecast import ForecastPlan, plan_forecast


@dataclass(frozen=True, eq=False)
class PlannedForecasts:
    """A trained model on its mesh, and the forecasts that it is to make."""

    checkpoint: Artifact  # the run, the package, or the checkpoint of CREDIT
    plan: ForecastPlan  # the plan of the forecasts
    model: ParallelModel  # the model of the plan, on its mesh
    outputs: Outputs  # variables of the forecasts

    @cached_property
    def weights(self) -> Any:
        """The weights on the mesh, after spectral norm."""
        return Forecaster(self.model, *self.checkpoint.restore(self.model)).weights

    def store(
        self,
        folder: Path,
        form: str | None,
        zarr_format: int = 3,
        scores: Mapping[str, Any] | None = None,
        repository: str | None = None,
    ) -> tuple[ForecastStore, Archive]:
        """Returns the store that forecasts are written to, and its archive."""
        plan, checkpoint, outputs = self.plan, self.checkpoint, self.outputs
        schedule, config = plan.schedule, plan.inference.output
        form = form or ("zarr" if repository else config.format)
        if repository and (form, zarr_format) != ("zarr", 3):
            raise ValueError(
                f"--out: {repository} needs Zarr v3, got {form}, version "
                f"{zarr_format}; leave out --format and --zarr-format"
            )
        precision = self.model.parallel_config.precision
        # The dtype, and the precision of products if it is no default.
        products = "" if precision.matmul == "highest" else f" {precision.matmul}"
        identity = {
            **identity_of(plan, self.model, form),
            "format": f"zarr {zarr_format}" if form == "zarr" else form,
            "checkpoint": checkpoint.digest,
            "precision": f"{precision.compute.name}{products}",
            "weights": "average" if checkpoint.average else "last",
        }
        if scores is not None:
            identity["scores"] = scores
        provenance = {
            "config": dump_config(plan.config),
            "checkpoint": str(checkpoint.path),
            "checkpoint_step": checkpoint.step,
            "checkpoint_digest": checkpoint.digest,
            TRAINING_DATES: [*map(list, raw_ranges(checkpoint.files.written))],
            **software(),
        }
        record = schedule, identity, provenance, outputs.coordinates, plan.digests
        archive = Archive(folder, *record)
        if form == "none":
            return ForecastStore(), archive
        if form == "netcdf":
            store = NetcdfStore(folder, outputs, schedule, config)
            store.check()
            return store, archive
        attributes = {key: attribute_value(value) for key, value in provenance.items()}
        store = ZarrStore(folder, outputs, schedule, attributes, zarr_format, config)
        if repository:
            archive = RepositoryArchive(folder, *record, repository, store)
        return store, archive


class RunOptions(WeightsOptions, MeshOptions, ProcessOptions):
    """A trained model of a run."""

    config: str | None = option("the YAML file", metavar="FILE", short="-c")
    set: tuple[str, ...] = option(OVERRIDES, (), "KEY=VALUE")
    checkpoint: str | None = option(
        "folder of the run (default: save_loc)", None, "DIR"
    )

    def read(self) -> tuple[Config, Package | None]:
        """The checked config of the run or package, and the package."""
        with warnings_as_notes():
            config = load_config(self.config or "", self.set, forecasts=True)
            _ = config.inference  # is checked when it is read
        return config, None

    def plan(
        self,
        config: Config,
        package: Package | None = None,
        *,
        changes: Mapping[str, Any] = MappingProxyType({}),
        **options: Any,
    ) -> PlannedForecasts:
        """Opens the weights, plans the forecasts, and builds the model on its mesh."""
        self.join()
        # Before a checkpoint is opened, which initializes JAX and fixes the devices.
        devices = self.mesh_devices()
        checkpoint: Artifact | None = package
        if checkpoint is None:
            source = self.checkpoint or local_path(config.save_loc)
            if kind_of(source) == "package":
                raise ValueError(
                    f"--checkpoint: {source} is a package, which has its config and "
                    f"weights; give --package {source} instead of --config and "
                    "--checkpoint"
                )
            step, weights, verify = self.step, self.weights, self.verify
            checkpoint = open_artifact(source, step, weights, verify=verify)
            compared = [f"note: {note}" for note in checkpoint.compare(config)]
            print_lines(compared, "yellow")
        like = checkpoint.coordinates
        plan = plan_forecast(
            config,
            parse_parallelism(self.parallelism),
            num_devices=len(devices),
            overrides=changes,
            like=like,
            **options,
        )
        notes = [*checkpoint.notes, *plan.notes]
        written = checkpoint.files.written.get("data") or {}
        matches = written.get("source") == dump_config(config)["data"]["source"]
        matches &= plan.inference.data is None
        if like is None and matches and isinstance(checkpoint, RunArtifact):
            grid = plan.reader.pipeline.grid
            at = plan.reader.data.coordinates().regridded(grid)
            notes.append(checkpoint.record_coordinates(at))
        notes += check_forecast_units(
            checkpoint.units,
            plan.reader.units,
            plan.inference,
            "this forecast cannot start",
        )
        print_lines([f"note: {note}" for note in notes], "yellow")
        model = plan.model.build(devices, mp_policy=self.policy)
        outputs = outputs_of(plan, model)
        grid = outputs.latitude, outputs.longitude
        checkpoint = checkpoint.of_data(plan.schema, plan.reader.data.further, *grid)
        outputs = outputs.over(checkpoint.described)
        return PlannedForecasts(checkpoint, plan, model, outputs)


class ModelOptions(RunOptions):
    """A trained model of a run or a package."""

    config: str | None = option("the YAML file", None, "FILE", short="-c")
    package: str | None = option("a model package, instead of --config", None, "DIR")
    base: str | None = option(
        "with --package: what its adapters belong to", None, "FILE"
    )
    data: str | None = option("with --package: YAML of its data section", None, "FILE")

    def read(
        self, sections: Mapping[str, Any] = MappingProxyType({})
    ) -> tuple[Config, Package | None]:
        """See `RunOptions.read`."""
        if self.package is None:
            if self.config is None:
                raise ValueError("--config FILE or --package DIR is needed")
            for name in ("data", "base"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"--{name} belongs to --package; a run has its own"
                    )
            return super().read()
        of_run = ("config", "checkpoint", "step", "weights")
        others = [f"--{name}" for name in of_run if getattr(self, name) is not None]
        if others:
            raise ValueError(
                f"--package has its config and weights; leave out {', '.join(others)}"
            )
        package = open_package(self.package, self.base)
        with warnings_as_notes():
            config = package.config(self.set, self.data, sections=sections)
            _ = config.inference
        return config, package
