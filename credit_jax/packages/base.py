"""The weights of a package as those that a run begins with."""

from __future__ import annotations

from credit_jax.checkpoint.store import label_of, takes_average
from credit_jax.data import ChannelSchema
from credit_jax.models.model_def import ModelDef
from credit_jax.packages.channel_table import groups_of
from credit_jax.packages.package import open_package
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
        ChannelSchema(*(groups_of(package.channels[k]) for k in ("input", "output"))),
        package.coordinates,
        package.units,
        trained=package.record,
    )
