"""The weights of a package as those that a run begins with."""

from __future__ import annotations

from collections.abc import Sequence

from credit_jax.checkpoint.store import label_of, takes_average
from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.models.model_def import ModelDef
from credit_jax.named_fields.coordinates import CoordinateValues
from credit_jax.packages.channel_table import order_of
from credit_jax.packages.package import Package, open_package
from credit_jax.plan.finetune import Base
from credit_jax.state_dict.key_map import Arrays, HostModelState
from credit_jax.training.base_weights import BaseWeights


def open_package_base(base: Base, weights: str | None) -> BaseWeights:
    """Opens a package, whose files are compared with their digests.

    Args:
        base: the package.
        weights: "average", "last", or None for those that it has.

    Raises:
        ValueError: see `open_package`; or it has others than these weights.
    """
    package = open_package(base.path)
    if weights is not None:
        takes_average(weights, has_average=package.average, where=base.path)
        if weights == "last" and package.average:
            raise ValueError(f"{base.path} has the average alone; leave weights out")

    def read(model_def: ModelDef) -> tuple[Arrays, HostModelState]:
        del model_def  # that of model.yml
        return package.weights

    return BaseWeights(
        base,
        f"package {base.path}, {label_of(average=package.average)}",
        read,
        _channels(package),
        package.coordinates,
        package.units,
        trained=package.record,
    )


def _channels(package: Package) -> ChannelSchema:
    """The channels of x and y; the times of a variable are not recorded."""
    parts = []
    for name in ("input", "output"):
        entries = package.channels[name]
        levels = {key: [] for key, _ in order_of(entries)}
        for entry in entries:
            levels[entry["key"]].append(entry["level"])
        parts.append(
            tuple(
                ChannelGroup(key, count, 1, _values(levels[key]))
                for key, count in order_of(entries)
            )
        )
    return ChannelSchema(*parts)


def _values(levels: Sequence[float | None]) -> CoordinateValues | None:
    """Values of levels; None for a variable without levels."""
    known = tuple(float(level) for level in levels if level is not None)
    return known if len(known) == len(levels) else None
