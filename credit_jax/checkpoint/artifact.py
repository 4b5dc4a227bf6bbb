"""A trained model, whatever its files are: a run, a package, a checkpoint of CREDIT."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from credit_jax.checkpoint.progress import channel_differences
from credit_jax.checkpoint.store import label_of
from credit_jax.config import Config, ConfigError, load_config
from credit_jax.config.finetune import FinetuneConfig, finetune_of
from credit_jax.config.load import CONFIG_NAME
from credit_jax.data import ChannelSchema
from credit_jax.data.schema import SCHEMA_FILE
from credit_jax.io.activity import activity
from credit_jax.io.digests import digest_of
from credit_jax.models.channel_change import (
    change_channels,
    change_moments,
    frozen_layers,
)
from credit_jax.models.model_def import ModelDef, Weights
from credit_jax.models.parallel_model import ParallelModel, place_weights
from credit_jax.models.registry import build
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.named_fields.units import VariableUnits, unit_problems
from credit_jax.nn.low_rank import is_adapter
from credit_jax.nn.parameters import ModelState
from credit_jax.parallel.params.init import initialize
from credit_jax.plan.channels import (
    ChannelMatch,
    level_differences,
    match_channels,
    num_in_common,
)
from credit_jax.plan.finetune import (
    Base,
    base_channels,
    config_data,
    finetuned,
    levels_asked,
    levels_read,
    with_levels,
)
from credit_jax.plan.run_record import RunRecord
from credit_jax.state_dict.key_map import Arrays, HostModelState

_LOG = logging.getLogger("credit_jax")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A trained model of one kind of files: config, channels, coordinates, weights."""

    files: Base  # what was found, with its model.yml
    path: Path  # the file or folder of the weights
    average: bool  # whether the weights are the moving average
    step: int | None  # number of the checkpoint; None if it has none
    # Coordinates of its data; None if it does not record them.
    coordinates: Coordinates | None = None
    # Key -> unit of variables of its data, and where it is recorded.
    units: VariableUnits = field(default_factory=dict)
    # Key -> unit and names of variables of the output, if recorded.
    described: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    has_moments: bool = False  # whether Adam's can be read

    @property
    def where(self) -> str:
        """What the weights are, for the log and for errors."""
        kind = "package " if self.files.kind == "package" else ""
        return f"{kind}{self.path}, {label_of(average=self.average)}"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights."""
        return digest_of(self.path)

    @property
    def notes(self) -> list[str]:
        """The note on a lack of coordinates, if there is one."""
        if self.coordinates is not None:
            return []
        return [
            f"{self.path} does not record the latitudes, longitudes and levels of its "
            "data, as it was made by an earlier version or from PyTorch: rows, columns "
            "and levels are taken in the order of the files"
        ]

    @cached_property
    def schema(self) -> ChannelSchema | None:
        """Channels of its data, with the values of their levels if these are known."""
        return base_channels(self.files, self.coordinates)

    @cached_property
    def record(self) -> RunRecord | None:
        """What its run was."""
        return RunRecord(self.files.written, where=self.where)

    @cached_property
    def model_def(self) -> ModelDef:
        """The model of its model.yml, which says nothing of what was frozen."""
        return build(self.files.section)

    def config(
        self,
        overrides: Sequence[str] = (),
        data: str | Path | None = None,
        *,
        unread: Sequence[str] = (),
    ) -> Config:
        """The config of forecasts, of model.yml."""
        if data is not None:
            raise ValueError(
                f"data={str(data)!r} belongs to a package; {self.path} is of a "
                "run, whose config names its data: give overrides, such as "
                "'data.source.NAME.variables.KIND.path=PATTERN'"
            )
        config = load_config(self.files.folder / CONFIG_NAME, overrides, forecasts=True)
        for note in self.compare(config):
            _LOG.warning("note: %s", note)
        return config

    @property
    def weights(self) -> tuple[Arrays, HostModelState]:
        """The weights of its model on the host; raises as `on_host` does."""
        return self.on_host(self.model_def)

    def on_host(self, model_def: ModelDef) -> tuple[Arrays, HostModelState]:
        """Whole parameters by path and model state, as they are in the files."""
        raise NotImplementedError

    def restore(self, model: ParallelModel) -> tuple[Weights, ModelState]:
        """The weights on the mesh of a model; raises as `on_host` does."""
        return place_weights(model, *self.on_host(model.model_def))

    def moments_on_host(self, model_def: ModelDef) -> optax.ScaleByAdamState:
        """Adam's moments of whole parameters by path, and the number of its updates."""
        raise NotImplementedError

    def of_data(
        self,
        schema: ChannelSchema,
        further: Mapping[str, ChannelSchema],
        latitude: np.ndarray,
        longitude: np.ndarray,
    ) -> Artifact:
        """The artifact for the data of forecasts, with its channels and grid."""
        # Those of a run are compared when the weights are read.
        return self

    def compare(self, config: Config | Mapping[str, Any]) -> list[str]:
        """Notes on how its run differs from a config; see `RunRecord.compare`."""
        if self.record is None:
            return [
                f"{self.path} does not record the config of its run, which has no "
                f"{CONFIG_NAME}: nothing says whether model, data and blocks are those "
                "of the training"
            ]
        here = RunRecord.of(config, forecasts=True)
        return self.record.compare(here, forecasts=True)

    def like(self, finetune: FinetuneConfig) -> Coordinates | None:
        """The coordinates at which a run reads its data; None if they are its own."""
        if finetune.new_grid or self.coordinates is None:
            return None
        # The calendar is that of its data, and so are the levels with new channels.
        sources = self.coordinates.sources
        if finetune.new_channels is not None:
            sources = {name: axes.grid for name, axes in sources.items()}
        return replace(self.coordinates, sources=sources, calendar=None)

    def match(
        self,
        channels: ChannelSchema,
        config: Config,
        units: VariableUnits,
        model_def: ModelDef,
    ) -> ChannelMatch | None:
        """The channels of a run by those of the base; None if they are the same."""
        finetune = config.trainer.finetune
        assert finetune is not None, "a run with a base has this section"
        new = finetune.new_channels
        other = "" if new is None else ", or give the variable another name"
        problems = [f"{line}{other}" for line in unit_problems(self.units, units)]
        if finetune.moments and not self.has_moments:
            problems.append(
                f"trainer.finetune.moments: the optimizer of {self.where} cannot be "
                "read; take false, or a run of credit_jax (credit-jax "
                "convert --to jax makes one of CREDIT's)"
            )
        if new is not None and self.schema is None:
            problems.append(
                f"trainer.finetune.new_channels: the channels of {self.where} are "
                f"unknown; put its {SCHEMA_FILE} beside its model.yml"
            )
        if problems:
            raise ConfigError(problems)
        if self.schema is None:
            return None
        problems = channel_differences(self.schema.names, channels.names)
        if new is not None or not problems:
            # The channels by the levels that are most alike: of files, or as a config
            # asks for them, of which these may be nearest.
            read = {} if self.coordinates is None else levels_read(self.coordinates)
            asked = levels_asked(config_data(self.files)), levels_asked(config.data)
            bases = (
                self.schema,
                *(with_levels(self.schema, x) for x in (read, asked[0])),
            )
            listed = with_levels(channels, asked[1])
            # Data that are read at the coordinates of the base have its levels,
            # whatever the config asks for.
            is_free = self.coordinates is None or new is not None
            pairs = product(bases, (channels, listed) if is_free else (listed,))
            base, current = max(pairs, key=lambda pair: num_in_common(*pair))
            if new is not None:
                match = match_channels(base, current, new)
                frozen = frozen_layers(model_def, match.change)
                if frozen:
                    raise ConfigError(
                        [
                            f"trainer.finetune.new_channels: new {direction}s would "
                            f"never be trained, as {', '.join(paths)} is frozen; name "
                            "it in train, or leave it out of freeze"
                            for direction, paths in frozen.items()
                        ]
                    )
                return match
            is_read_alike = self.coordinates is not None
            problems = level_differences(base, current, in_order=not is_read_alike)
        if problems:
            raise ConfigError(
                [
                    f"trainer.finetune.from: {self.where} has other channels: {line}; "
                    "trainer.finetune.new_channels takes those that both have"
                    for line in problems
                ]
            )
        return None

    @activity("reading the base")
    def weights_for(
        self, model_def: ModelDef, match: ChannelMatch | None
    ) -> tuple[Arrays, HostModelState]:
        """Whole parameters by path and model state for the model of a new run."""
        params, state = self.weights
        if match is not None:
            plain, weights = replace(model_def, low_rank=None), (params, state)
            change = match.change
            params, state = change_channels(weights, self.model_def, plain, change)
        return {**params, **first_adapters(model_def)}, state

    def moments_for(
        self, model_def: ModelDef, match: ChannelMatch | None
    ) -> optax.ScaleByAdamState:
        """Adam's moments of what it and the model of a new run both have, by path."""
        finetune = finetune_of(self.files.written)
        adam = self.moments_on_host(finetuned(self.model_def, finetune))
        parts: list[Any] = [adam.mu, adam.nu]
        if match is not None:
            plain = replace(model_def, low_rank=None)
            parts = [change_moments(part, plain, match.change) for part in parts]
        # Adapters begin anew: those of the base are in its matrices.
        trained = {path for path in model_def.trainable if not is_adapter(path)}
        mu, nu = (
            {path: x for path, x in part.items() if path in trained} for part in parts
        )
        return optax.ScaleByAdamState(adam.count, mu, nu)


def first_adapters(model_def: ModelDef, seed: int = 0) -> Arrays:
    """The adapters of a model before the first update, by path; all of B is 0."""
    if model_def.low_rank is None:
        return {}
    specs = model_def.low_rank.param_specs(model_def.param_specs)
    return jax.device_get(initialize(specs, jax.random.key(seed)))
