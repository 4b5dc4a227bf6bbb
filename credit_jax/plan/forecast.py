"""The plan of forecasts: all their parts and all problems, before compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from credit_jax import transforms
from credit_jax.config import Config, dump_config
from credit_jax.config.base import as_problems, check_problems, together
from credit_jax.config.data import DataConfig
from credit_jax.config.inference import InferenceConfig
from credit_jax.config.messages import counted
from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.data import ChannelSchema
from credit_jax.data.calendars import STANDARD
from credit_jax.data.forecast_data import (
    ForecastData,
    ForecastReader,
    open_forecast_data,
)
from credit_jax.data.opened_data import NamedData
from credit_jax.data.perturbations import Perturbation, parse_perturbation
from credit_jax.data.schedule import ForecastSchedule, make_schedule
from credit_jax.io.open_files import OpenFiles
from credit_jax.models.common.config import ModelConfig
from credit_jax.named_fields.coordinates import (
    Coordinates,
    check_order,
    check_shared_grid,
    indices_of,
    listed,
)
from credit_jax.plan.channels import data_problems, schema_of
from credit_jax.plan.run import ModelPlan, RunPlan, plan_model
from credit_jax.plan.run_record import RunRecord

_SECTIONS = ("data", "preblocks", "postblocks")


@dataclass(frozen=True)
class ForecastPlan:
    """The parts of the forecasts of a config; each file is opened once."""

    config: Config  # the config
    # Its `inference:` section, with the options of the command line.
    inference: InferenceConfig
    data: DataConfig  # the data section of the forecasts
    model: ModelPlan  # the model and the degrees of its mesh
    schedule: ForecastSchedule  # start dates, steps, members
    perturbation: Perturbation  # perturbation of the members
    reader: ForecastReader  # reader of initial states and forcing
    rollout: (
        transforms.Rollout
    )  # the transforms after a step, and how the next input is made
    schema: ChannelSchema  # channels of x and y
    notes: tuple[str, ...] = ()  # information for the user, one line each

    @cached_property
    def truth(self) -> NamedData:
        return forecast_truth(self.config, self.inference)

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 of the files that forecasts read besides weights and data."""
        return dict(RunRecord.of(self.config, forecasts=True).digests)

    def sections(self) -> dict[str, Any]:
        """The sections of the config that determine the values of forecasts."""
        raw = dump_config(self.config)
        section = raw.get("inference") or {}
        used = {name: section.get(name) or raw.get(name) for name in _SECTIONS}
        return {"model": raw["model"], "seed": self.config.seed, **used}


def levels_of(
    config: Config, schema: ChannelSchema
) -> dict[str, Sequence[float] | None]:
    """Source -> levels of its forecasts, as listed in the config, or of the files."""
    read = {group.source: group.levels for group in schema.target if group.levels}
    levels: dict[str, Sequence[float] | None] = {**read}
    inference = config.inference or InferenceConfig()
    # Those of the training come last, as they replace the others.
    for data in (
        forecast_truth(config, inference),
        NamedData.before(config.preblocks, config.data),
    ):
        for name, source in data.data.source.items() if not data.moved else ():
            listed, stored = source.levels or (), read.get(name) or ()
            # Levels that are listed in another unit are those that are read.
            is_near = sum(stored) / 10 <= sum(listed) <= sum(stored) * 10
            if listed and (is_near or len(listed) != len(stored)):
                levels[name] = listed
    return levels


@as_problems("this forecast cannot start")
def plan_forecast(
    config: Config,
    parallelism: ParallelismConfig,
    *,
    num_devices: int,
    init_times: Sequence[str] = (),
    num_steps: int | None = None,
    length: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    # Its model, mesh, channels, transforms and open files are used, and `parallelism`
    # and `num_devices` are not.
    run: RunPlan | None = None,
    # Of the run, at which the data are read; None takes those of the first file.
    like: Coordinates | None = None,
    # Steps from the only initial state of the data to the first start date, where later
    # forecasts begin with other states; None needs one at each date.
    earlier_state: int | None = None,
) -> ForecastPlan:
    """Plans forecasts; no weights are initialized, and nothing is compiled."""
    inference = (config.inference or InferenceConfig()).model_copy(
        update=dict(overrides or {})
    )
    data: DataConfig = inference.data or config.data
    schedule_in = partial(
        make_schedule,
        inference,
        data.time_step,
        init_times=init_times,
        num_steps=num_steps,
        length=length,
    )
    # Files are opened for start dates, and only then say in which calendar dates are:
    # a schedule in the calendar of the config comes first, and below one in theirs.
    model: ModelPlan
    dates: ForecastSchedule
    perturbation: Perturbation
    pipeline: transforms.Pipeline
    model, dates, perturbation, pipeline = together(
        lambda: (
            run.model
            if run is not None
            else plan_model(
                config.model,
                parallelism,
                num_devices=num_devices,
                key="--parallelism",
            )
        ),
        lambda: schedule_in(data.calendar or STANDARD),
        lambda: parse_perturbation(inference.perturbation),
        lambda: forecast_pipeline(config, inference, run),
    )

    num_earlier = max(*perturbation.states(dates), earlier_state or 0)
    if like is not None and inference.preblocks is not None:
        # Its own blocks may convert units.
        like = replace(like, units={})
    opened = open_forecast_data(
        data,
        dates.before(num_earlier),
        dates.num_steps,
        (None if run is None else run.open_files) or OpenFiles(),
        # Blocks of `inference.preblocks` bring other data to the coordinates of the
        # run, so that these are compared only after them (`_located`).
        like=like if inference.data is None or run is not None else None,
        shared_grid=pipeline.grid is None,
    )
    # Scores at the end of training plan with the schema that the run trains with.
    trained = None if run is None else run.schema
    schedule: ForecastSchedule
    schema: ChannelSchema
    schedule, schema = together(
        lambda: schedule_in(opened.calendar),
        lambda: forecast_schema(
            config, inference, model.config, pipeline, opened, trained
        ),
    )

    first = None if earlier_state is None else schedule.valid_time(0, -earlier_state)
    starts, steps = schedule.starts, schedule.num_steps
    missing = opened.problems(
        starts, steps, None if first is None else np.array([first])
    )
    # Steps before the forecasts, too.
    if first is not None and earlier_state:
        missing += opened.problems(np.array([first]), earlier_state)
    elif first is None and num_earlier:
        missing += opened.problems(schedule.before(num_earlier), 1)
    # The transforms take the order of rows and levels of the data before the rollout is
    # made of them.
    _, pipeline, *_ = together(
        lambda: check_problems(data_problems(data, model.config, schema, opened)),
        lambda: _located(pipeline, opened, schema, like),
        # Blocks that change the grid take sources on grids of their own.
        lambda: opened.check_grid(model.grid) if pipeline.grid is None else None,
        lambda: check_problems(missing),
        lambda: check_problems(perturbation.unknown_variables(schema.target_slices())),
        lambda: check_problems(
            perturbation.problems(
                schedule, model.config.x.frames, model.config.draws_noise
            )
        ),
    )
    channels = schema.input_slices(), schema.target_slices()
    rollout = transforms.Rollout.of(pipeline, *channels, num_steps=steps)
    notes = [*model.notes]
    if schedule.num_members > 1:
        each = f"each of {counted(len(starts), 'start date')}"
        notes += filter(None, [perturbation.cost(each)])
    if config.postblocks.post_rollout and inference.postblocks is None:
        notes.append(
            "postblocks.post_rollout: runs after the last step is written, as in "
            "CREDIT, and changes nothing"
        )
    notes += opened.notes()
    notes += [
        *transforms.notes_on_initial(pipeline),
        *transforms.notes_on_order(pipeline, opened.schema.as_read()),
        *opened.notes_on_persistence(starts, steps),
    ]
    return ForecastPlan(
        config,
        inference,
        data,
        model,
        schedule,
        perturbation,
        ForecastReader(opened, pipeline, schedule, schema, state=first),
        rollout,
        schema,
        tuple(dict.fromkeys(notes)),
    )


def forecast_pipeline(
    config: Config, inference: InferenceConfig, run: RunPlan | None = None
) -> transforms.Pipeline:
    """Builds the transforms of forecasts, or takes those of the plan of a run."""
    if run is not None and run.pipeline is not None:
        return transforms.for_forecast(transforms.with_reconstruct(run.pipeline))
    preblocks = inference.preblocks or config.preblocks
    postblocks = inference.postblocks or config.postblocks
    return transforms.for_forecast(transforms.build_pipeline(preblocks, postblocks))


def forecast_truth(config: Config, inference: InferenceConfig) -> NamedData:
    """The data that forecasts are made from, which are also their truth."""
    preblocks = inference.preblocks or config.preblocks
    return NamedData.before(preblocks, inference.data or config.data)


def forecast_schema(
    config: Config,
    inference: InferenceConfig,
    model: ModelConfig,
    pipeline: transforms.Pipeline,
    opened: ForecastData,
    trained: ChannelSchema | None = None,
) -> ChannelSchema:
    """The channels of the model: those of the data, predictions as in training."""
    schema = opened.schema.after(pipeline)
    if inference.data is None:
        return schema
    if trained is None:
        of_training = transforms.build_pipeline(config.preblocks, config.postblocks)
        trained = schema_of(config.data, model, of_training)
    current, other = schema.input_slices(), trained.input_slices()
    if [*current.items()] != [*other.items()]:
        missing = [key for key in other if other[key] != current.get(key)]
        more = [key for key in current if key not in other]
        if not more and current.keys() == other.keys():
            raise ValueError(
                "inference.data: its input channels are in another order than those "
                f"that the model was trained with: {', '.join(current)}; expected "
                f"{', '.join(other)}. Give sources and variables in that order; a "
                "source that a rename block makes comes after those that there are"
            )
        raise ValueError(
            "inference.data: its input channels are not those that the model was "
            f"trained with; missing or elsewhere: {', '.join(missing) or 'none'}; not "
            f"known: {', '.join(more) or 'none'}; reconcile them in "
            "inference.preblocks, with a rename or regrid block"
        )
    return replace(schema, target=trained.target)


def _located(
    pipeline: transforms.Pipeline,
    opened: ForecastData,
    schema: ChannelSchema,
    like: Coordinates | None,
) -> transforms.Pipeline:
    """The transforms with their files in the order of the data."""
    tree_schema = opened.schema.as_read()
    data = opened.coordinates()
    if like is not None:
        like.check_calendar(data.calendar, "the data of forecasts")
        # Checks that the input of the model is on the rows and columns of the run.
        axes, origin = data, data.where
        if pipeline.grid is not None:
            axes, origin = pipeline.grid, "the regrid block of preblocks"
        trained, grid = (like.latitude, like.longitude), (axes.latitude, axes.longitude)
        check_shared_grid(trained, grid, origin, like.where)
        for group in schema.input:
            recorded = like.sources.get(group.source)
            if recorded is None or len(recorded.levels or ()) != group.n_levels:
                continue
            if "/3d/" in group.var_key:
                of_data = f"the data ({group.var_key})"
                pair = recorded.levels, group.levels
                indices = indices_of(*pair, "level", of_data, like.where, of_run=True)
                check_order(
                    [indices], f"the levels {listed(group.levels)}", of_data, like.where
                )
    return pipeline.at(tree_schema, data.grid)
