"""The weights that a run begins with: `trainer.finetune.from`.

Runs are read here. Packages and CREDIT's checkpoints are read by modules above this
one, the latter with torch; they are imported by name where a config asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from credit_jax.checkpoint.choice import label_of
from credit_jax.checkpoint.progress import channel_differences
from credit_jax.config.base import ConfigError
from credit_jax.config.finetune import FinetuneConfig
from credit_jax.data import ChannelSchema
from credit_jax.data.schema import SCHEMA_FILE
from credit_jax.io.activity import activity
from credit_jax.models.model_def import ModelDef
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.plan.finetune import Base, check_type, find_base
from credit_jax.state_dict.key_map import Arrays, HostModelState
from credit_jax.training.run_weights import open_weights

Read = Callable[[ModelDef], tuple[Arrays, HostModelState]]


@dataclass(frozen=True)
class BaseWeights:
    """Opened weights of a base; arrays are read by `on_host`.

    Attributes:
        where: what they are, for the log and for errors.
        read: reads whole parameters by path and model state, for a model definition.
        channels: channels of its data; None if unknown.
        coordinates: coordinates of its data; None if unknown.
        changed: notes on files whose contents, by digests, are not those of the base.
    """

    where: str
    read: Read
    channels: ChannelSchema | None = None
    coordinates: Coordinates | None = None
    changed: Callable[[Mapping[str, str]], list[str]] = lambda digests: []

    @activity("reading the base")
    def on_host(
        self, model_def: ModelDef, channels: ChannelSchema
    ) -> tuple[Arrays, HostModelState]:
        """Whole parameters by path and model state.

        Args:
            model_def: the model of the run.
            channels: channels of the data of the run.

        Raises:
            ConfigError: the base was trained with other channels.
            ValueError: its files are damaged, or have arrays of other shapes.
        """
        if self.channels is not None:
            problems = channel_differences(self.channels.names, channels.names)
            if problems:
                where = f"trainer.finetune.from: {self.where} has other channels"
                raise ConfigError([f"{where}: {line}" for line in problems])
        return self.read(model_def)


# (base, "average", "last" or None) -> its weights, not read yet.
OpenBase = Callable[[Base, str | None], BaseWeights]


def open_base(finetune: FinetuneConfig, model_type: str) -> BaseWeights:
    """Opens the base of a run, and compares its files with their digests.

    Args:
        finetune: section that names the base, and which of its weights are meant.
        model_type: `model.type` of the run.

    Raises:
        FileNotFoundError, ValueError: there is no such base, it is damaged or of
            another type, or PyTorch is not installed, which its files need.
    """
    base = find_base(finetune)
    check_type(base, model_type)
    return _opener(base)(base, finetune.weights)


def _opener(base: Base) -> OpenBase:
    if base.kind == "run":
        return _open_run
    if base.kind == "package":
        return import_module("credit_jax.packages.base").open_package_base
    try:
        return import_module("credit_torch_bridge.checkpoint.base").open_torch_base
    except ModuleNotFoundError as error:
        raise ValueError(
            f"trainer.finetune.from: {base.path} is a checkpoint of CREDIT, which "
            f"needs {error.name}: install credit_jax[bridge], or convert it where that "
            "is installed (credit-jax convert --to jax) and give the run"
        ) from None


def _open_run(base: Base, weights: str | None) -> BaseWeights:
    opened = open_weights(base.path, weights=weights)
    schema = base.path / SCHEMA_FILE
    return BaseWeights(
        f"{opened.path}, {label_of(average=opened.average)}",
        opened.on_host,
        ChannelSchema.load(schema) if schema.is_file() else None,
        opened.coordinates,
        opened.changed_files,
    )
