"""Transforms before and after the model: CREDIT's preblocks and postblocks."""

from credit_jax.transforms.base import (
    PREBLOCKS,
    TRANSFORMS,
    FieldTree,
    Grid,
    Phase,
    Transform,
    TreeSchema,
    Where,
)
from credit_jax.transforms.build import (
    build_pipeline,
    check_units,
    notes_on_initial,
    notes_on_inverses,
    notes_on_order,
    notes_on_schema,
    units_after,
)
from credit_jax.transforms.forecast_pipelines import (
    after_aligned,
    for_forcing,
    for_forecast,
    with_gradients,
    with_reconstruct,
)
from credit_jax.transforms.normalize import Normalizer
from credit_jax.transforms.pipeline import Pipeline, Units, channel_units
from credit_jax.transforms.rollout import (
    FORCING,
    ONE_STEP,
    Advance,
    Backprop,
    Rollout,
    constant_fields,
    fields_of_rollout,
    initial_entries,
    newest,
)

__all__ = [
    "FORCING",
    "ONE_STEP",
    "PREBLOCKS",
    "TRANSFORMS",
    "Advance",
    "Backprop",
    "FieldTree",
    "Grid",
    "Normalizer",
    "Phase",
    "Pipeline",
    "Rollout",
    "Transform",
    "TreeSchema",
    "Units",
    "Where",
    "after_aligned",
    "build_pipeline",
    "channel_units",
    "check_units",
    "constant_fields",
    "fields_of_rollout",
    "for_forcing",
    "for_forecast",
    "initial_entries",
    "newest",
    "notes_on_initial",
    "notes_on_inverses",
    "notes_on_order",
    "notes_on_schema",
    "units_after",
    "with_gradients",
    "with_reconstruct",
]
