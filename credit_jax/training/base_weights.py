"""The weights that a run begins with: `trainer.finetune.from`.

Runs are read here. Packages and CREDIT's checkpoints are read by modules above this
one, the latter with torch; they are imported by name where a config asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import product
from typing import Any

import jax
import optax

from credit_jax.checkpoint.progress import channel_differences
from credit_jax.checkpoint.store import label_of
from credit_jax.config import Config, ConfigError
from credit_jax.config.finetune import FinetuneConfig, finetune_of
from credit_jax.data import ChannelSchema
from credit_jax.data.schema import SCHEMA_FILE
from credit_jax.io.activity import activity
from credit_jax.models.channel_change import (
    change_channels,
    change_moments,
    frozen_layers,
)
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.named_fields.units import VariableUnits, unit_problems
from credit_jax.nn.low_rank import is_adapter
from credit_jax.parallel.params.init import initialize
from credit_jax.plan.finetune import (
    Base,
    base_channels,
    check_type,
    config_data,
    find_base,
    finetuned,
    levels_asked,
    levels_read,
    with_levels,
)
from credit_jax.plan.run_record import RunRecord
from credit_jax.state_dict.key_map import Arrays, HostModelState
from credit_jax.training.channel_match import (
    ChannelMatch,
    level_differences,
    match_channels,
    num_in_common,
)
from credit_jax.training.run_weights import open_weights

ReadWeights = Callable[[ModelDef], tuple[Arrays, HostModelState]]
ReadMoments = Callable[[ModelDef], optax.ScaleByAdamState]


@dataclass(frozen=True)
class BaseWeights:
    """Opened weights of a base; arrays are read by `on_host`.

    Attributes:
        base: the base.
        where: what they are, for the log and for errors.
        read: reads whole parameters by path and model state, for the model of the base.
        channels: channels of its data, with the values of their levels if these are
            known; None if unknown.
        coordinates: coordinates of its data; None if unknown.
        units: units of the variables of its data, those that are known.
        moments: reads Adam's moments of the model of the base, by path; None if it has
            none.
        trained: record of its run; None if model.yml alone says what it is.
    """

    base: Base
    where: str
    read: ReadWeights
    channels: ChannelSchema | None = None
    coordinates: Coordinates | None = None
    units: VariableUnits = field(default_factory=dict)
    moments: ReadMoments | None = None
    trained: RunRecord | None = None

    @property
    def record(self) -> RunRecord:
        """What the run of the base is."""
        return self.trained or RunRecord(self.base.written, where=self.where)

    def like(self, finetune: FinetuneConfig) -> Coordinates | None:
        """The coordinates at which a run reads its data; None if they are its own.

        The calendar is that of its data, and so are the levels with new channels.
        """
        if finetune.new_grid or self.coordinates is None:
            return None
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
        """The channels of a run by those of the base; None if they are the same.

        Args:
            channels: channels of the data of the run.
            config: config of the run, whose `trainer.finetune` says whether some may be
                new, and whether moments are asked for.
            units: units of these data.
            model_def: the model of the run, with its frozen parameters.

        Raises:
            ConfigError: a variable has another unit than in the base; the base has not
                the moments that are asked for; it was trained with other channels, and
                there may be no new ones; the layers of new ones are frozen; or see
                `match_channels`.
        """
        finetune = config.trainer.finetune
        assert finetune is not None, "a run with a base has this section"
        new = finetune.new_channels
        other = "" if new is None else ", or give the variable another name"
        problems = [f"{line}{other}" for line in unit_problems(self.units, units)]
        if finetune.moments and self.moments is None:
            problems.append(
                f"trainer.finetune.moments: the optimizer of {self.where} cannot be "
                "read; take false, or a run of credit_jax (credit-jax "
                "convert --to jax makes one of CREDIT's)"
            )
        if new is not None and self.channels is None:
            problems.append(
                f"trainer.finetune.new_channels: the channels of {self.where} are "
                f"unknown; put its {SCHEMA_FILE} beside its model.yml"
            )
        if problems:
            raise ConfigError(problems)
        if self.channels is None:
            return None
        problems = channel_differences(self.channels.names, channels.names)
        if new is not None or not problems:
            base, ours = self._by_levels(self.channels, channels, config)
            if new is not None:
                match = match_channels(base, ours, new)
                frozen = frozen_layers(model_def, match.change)
                if frozen:
                    raise ConfigError([*map(_stay, frozen, frozen.values())])
                return match
            is_read_alike = self.coordinates is not None
            problems = level_differences(base, ours, in_order=not is_read_alike)
        if problems:
            raise ConfigError(
                [
                    f"trainer.finetune.from: {self.where} has other channels: {line}; "
                    "trainer.finetune.new_channels takes those that both have"
                    for line in problems
                ]
            )
        return None

    def _by_levels(
        self, base: ChannelSchema, ours: ChannelSchema, config: Config
    ) -> tuple[ChannelSchema, ChannelSchema]:
        """Channels of the base and of a run, of the levels that are most alike.

        Levels are those of files, or as a config asks for them, whose nearest ones
        these may be. Data that are read at the coordinates of the base have its levels
        whatever the config asks for, so that this alone counts.
        """
        read = {} if self.coordinates is None else levels_read(self.coordinates)
        asked = levels_asked(config_data(self.base))
        bases = (base, with_levels(base, read), with_levels(base, asked))
        listed = with_levels(ours, levels_asked(config.data))
        finetune = config.trainer.finetune
        is_free = self.coordinates is None or (finetune and finetune.new_channels)
        pairs = product(bases, (ours, listed) if is_free else (listed,))
        return max(pairs, key=lambda pair: num_in_common(*pair))

    @activity("reading the base")
    def on_host(
        self, model_def: ModelDef, match: ChannelMatch | None
    ) -> tuple[Arrays, HostModelState]:
        """Whole parameters by path and model state for the model of a run.

        Args:
            model_def: the model of the run.
            match: its channels, as returned by `match`.

        Raises:
            ValueError: its files are damaged, or have arrays of other shapes.
        """
        base_def = build(self.base.section)
        params, state = self.read(base_def)
        if match is not None:
            plain, weights = replace(model_def, low_rank=None), (params, state)
            params, state = change_channels(weights, base_def, plain, match.change)
        return {**params, **first_adapters(model_def)}, state

    def moments_on_host(
        self, model_def: ModelDef, match: ChannelMatch | None
    ) -> optax.ScaleByAdamState:
        """Adam's moments of what the base and the model of a run both have, by path.

        Args:
            model_def, match: as for `on_host`.

        Raises:
            ValueError: they are those of another optimizer.
        """
        assert self.moments is not None, "`match` refuses a base without moments"
        adam = self.moments(trained_model(self.base))
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


def _stay(direction: str, paths: Sequence[str]) -> str:
    """The problem of new channels whose layers are frozen."""
    return (
        f"trainer.finetune.new_channels: new {direction}s would never be trained, as "
        f"{', '.join(paths)} is frozen; name it in train, or leave it out of freeze"
    )


def trained_model(base: Base) -> ModelDef:
    """The model of a base, with what its own run froze and its adapters."""
    return finetuned(build(base.section), finetune_of(base.written))


# (base, "average", "last" or None) -> its weights, not read yet.
OpenBase = Callable[[Base, str | None], BaseWeights]


def open_base(base: Base, weights: str | None) -> BaseWeights:
    """Opens a base, and compares its files with their digests.

    Args:
        base: the base, as returned by `find_base`, whose type is checked.
        weights: "average", "last", or None for the average if there is one.

    Raises:
        FileNotFoundError, ValueError: it is damaged, or PyTorch is not installed, which
            its files need.
    """
    return _opener(base)(base, weights)


def base_of_run(config: Config) -> BaseWeights | None:
    """Opens the base that `trainer.finetune` names; None without that section.

    Raises:
        FileNotFoundError, ValueError: see `find_base`, `check_type` and `open_base`.
    """
    finetune = config.trainer.finetune
    if finetune is None:
        return None
    base = find_base(finetune.base)
    check_type(base, config.model["type"])
    return open_base(base, finetune.weights)


def _opener(base: Base) -> OpenBase:
    if base.kind == "run":
        return _open_run
    if base.kind == "package":
        return import_module("credit_jax.packages.package").open_package_base
    try:
        return import_module("credit_torch_bridge.checkpoint.base").open_torch_base
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{base.key}: {base.path} is a checkpoint of CREDIT, which "
            f"needs {error.name}: install credit_jax[bridge], or convert it where that "
            "is installed (credit-jax convert --to jax) and give the run"
        ) from None


def _open_run(base: Base, weights: str | None) -> BaseWeights:
    opened = open_weights(base.path, weights=weights)
    return BaseWeights(
        base,
        f"{opened.path}, {label_of(average=opened.average)}",
        opened.on_host,
        base_channels(base, opened.coordinates),
        opened.coordinates,
        opened.units,
        opened.moments_on_host if opened.has_moments else None,
        opened.record,
    )


def first_adapters(model_def: ModelDef, seed: int = 0) -> Arrays:
    """The adapters of a model before the first update, by path.

    Args:
        model_def: the model.
        seed: seed of the initial A; B is 0.
    """
    if model_def.low_rank is None:
        return {}
    specs = model_def.low_rank.param_specs(model_def.param_specs)
    return jax.device_get(initialize(specs, jax.random.key(seed)))
