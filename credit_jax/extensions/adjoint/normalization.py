"""Named fields of a forecast in the normalized units of the model's channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from credit_jax.data import ChannelSchema
from credit_jax.named_fields import FieldContext
from credit_jax.physics.arrays import namespace
from credit_jax.transforms import Phase, Pipeline, Units, channel_units
from credit_jax.transforms.rollout import PROGNOSTIC


@dataclass(frozen=True)
class Normalization:
    """Normalizes prognostic variables as the preblocks of a step do."""

    units: Units

    def normalize(
        self, fields: Mapping[str, Any], context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Normalizes the prognostic ones of some fields; others stay as they are."""
        names = {old: new for new, old in self.units.origins.items()}
        keys = [names[key] for key in self.units.data.keys]
        normal = self.units.normalize(_joined(fields, keys), context)
        return {**fields, **self._split(normal)}

    def denormalize(
        self, fields: Mapping[str, Any], context: FieldContext | None = None
    ) -> dict[str, Any]:
        """The inverse of `normalize`."""
        channels = _joined(fields, self.units.model.keys)
        physical = self.units.denormalize(channels, context)
        return {**fields, **self._split(physical)}

    def _split(self, channels: Any) -> dict[str, Any]:
        indices = self.units.model.slices.items()
        return {key: channels[:, part] for key, part in indices}


def normalization(
    aligned: Pipeline, schema: ChannelSchema, pipeline: Pipeline
) -> Normalization:
    """Builds the normalization of the prognostic variables of a forecast."""

    def part(transforms: Pipeline, phase: Phase) -> Pipeline:
        return Pipeline(transforms.of(phase))

    groups = [group for group in schema.target if group.field_type == PROGNOSTIC]
    started = part(pipeline, Phase.INITIAL).schema_after({"target": groups})
    # `aligned` is that of `Advance`, without transforms that move fields.
    steps = part(aligned, Phase.BEFORE_STEP)
    return Normalization(channel_units(steps, started["target"]))


def _joined(fields: Mapping[str, Any], keys: Any) -> Any:
    arrays = [fields[key] for key in keys]
    module = namespace(*arrays)
    return module.concatenate(arrays, axis=1)
