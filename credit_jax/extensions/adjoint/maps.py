"""A forecast as a pure function from named fields to named fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from credit_jax.data import ChannelSchema
from credit_jax.data.schedule import Task
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.forecast.labeled import DatasetForecaster
from credit_jax.forecast.members import member_noise
from credit_jax.forecast.stepping import StateBatch
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.tree import by_key, by_source
from credit_jax.parallel.compiler import compile_program, is_outermost
from credit_jax.parallel.placement import ROW_DIM, batch_spec, pad_rows, place_batch
from credit_jax.physics.arrays import namespace
from credit_jax.plan.forecast import ForecastPlan
from credit_jax.transforms import (
    FieldTree,
    Phase,
    Pipeline,
    Rollout,
    channel_units,
    newest,
    with_gradients,
)
from credit_jax.transforms import Units as ChannelUnits
from credit_jax.transforms.rollout import CARRY, PROGNOSTIC, field_type_of


@dataclass(frozen=True)
class Normalization:
    """Normalizes prognostic variables as the preblocks of a step do."""

    units: ChannelUnits

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
    groups = [group for group in schema.target if group.field_type == PROGNOSTIC]
    initial = Pipeline(pipeline.of(Phase.INITIAL))
    started = initial.schema_after({"target": groups})
    # `aligned` is that of `Advance`, without transforms that move fields.
    steps = Pipeline(aligned.of(Phase.BEFORE_STEP))
    return Normalization(channel_units(steps, started["target"]))


def _joined(fields: Mapping[str, Any], keys: Any) -> Any:
    arrays = [fields[key] for key in keys]
    module = namespace(*arrays)
    return module.concatenate(arrays, axis=1)


Units: TypeAlias = Literal["physical", "normalized"]
# Entry of the inputs of a step with its target, for losses.
TARGET = "y"
# Key -> field of every prognostic variable.
State: TypeAlias = Mapping[str, Float[Any, "batch _ time lat lon"]]
# Key -> field of every predicted variable.
Fields: TypeAlias = dict[str, Float[Array, "lead batch _ lat lon"]]


@dataclass(frozen=True, eq=False)
class ForecastMap:
    """A forecast as a differentiable function of its initial state."""

    step: ForecastStep
    # Of `Forecaster.weights`.
    weights: Any
    # On the mesh: the other "fields" of the first input, "later" inputs stacked over
    # steps, "noise", and entries of `ForecastStep.start`.
    constants: Mapping[str, Any]
    # On the host, in the units of `normalization`; None for physical ones.
    state: Mapping[str, np.ndarray]
    leads: tuple[int, ...]  # steps whose fields are returned, increasing
    normalization: Normalization | None = None

    def __call__(self, state: State) -> Fields:
        """Returns the fields after the steps `leads`."""
        check_shapes(state, self.state, "state")
        return self.run("function", dict(state))

    def run(self, name: str, *arrays: Any) -> Any:
        """Runs `function`, `tangents` or `gradient`, jitted, also inside of a `jit`."""
        arguments = self.weights, self.constants, *arrays
        if is_outermost(arguments):
            return self._programs[name](*arguments)
        return getattr(self, name)(*arguments)

    def compiled_as(self, other: ForecastMap) -> ForecastMap:
        """Takes the compiled programs of a map that differs in its arrays alone."""
        vars(self)["_programs"] = other._programs
        return self

    @cached_property
    def _programs(self) -> dict[str, Any]:
        functions = {
            "function": self.function,
            "tangents": self.tangents,
            "gradient": self.gradient,
        }
        mesh = self.step.model.mesh
        return {name: compile_program(f, mesh) for name, f in functions.items()}

    def function(self, weights: Any, constants: Mapping[str, Any], state: State) -> Any:
        """The forecast as a function of all its arrays, not jitted."""
        spec = PartitionSpec(None, *batch_spec(self.step.model.axes))
        fields = self.mapped(weights, constants, state, spec)
        num_rows = self.step.model.model_def.image_height
        return {k: x[:, :, :, 0, :num_rows] for k, x in fields.items()}

    def mapped(
        self,
        weights: Any,
        constants: Mapping[str, Any],
        state: State,
        out_specs: PartitionSpec,
    ) -> Any:
        """What `measured` returns of the steps `leads`, stacked; global arrays."""
        model = self.step.model
        padded = {
            key: pad_rows(jnp.asarray(x), model.axes.num_domain, ROW_DIM)
            for key, x in state.items()
        }
        later = batch_spec(model.axes, stacked=True)
        inputs = model.input_specs(stacked=True)
        of_name: dict[str, Any] = {
            **model.input_specs(),
            "noise": PartitionSpec(batch_spec(model.axes)[0]),
            "later": {k: inputs.get(k, later) for k in self.constants["later"]},
        }
        specs = {k: of_name.get(k, batch_spec(model.axes)) for k in constants}
        batch_specs = specs, batch_spec(model.axes)
        run = model.shard_map(self._local, batch_specs=batch_specs, out_specs=out_specs)
        return run(*weights, (constants, padded))

    def tangents(
        self, weights: Any, constants: Any, state: State, perturbation: State
    ) -> tuple[Fields, Fields]:
        """The fields, and their tangents; not jitted."""
        forecast = partial(self.function, weights, constants)
        tangent = jax.tree.map(
            lambda x, like: jnp.asarray(x, like.dtype), perturbation, state
        )
        return jax.jvp(forecast, (state,), (tangent,))

    def gradient(
        self, weights: Any, constants: Any, state: State, cotangents: Any
    ) -> tuple[Any, dict[str, Any]]:
        """The value of `function`, and the gradient of <cotangents, value>."""
        value, pullback = jax.vjp(partial(self.function, weights, constants), state)
        like = jax.tree.map(lambda x, to: jnp.asarray(x, to.dtype), cotangents, value)
        return value, pullback(like)[0]

    def _local(self, params: Any, model_state: Any, arguments: Any) -> Any:
        """All steps on local rows."""
        constants, state = dict(arguments[0]), arguments[1]
        noise, later = constants.pop("noise", None), constants.pop("later")
        carried = self._first(state, constants.pop("fields"), constants)
        fixed = {k: v for k, v in constants.items() if k not in carried}

        # Only states are not computed again backward: memory grows by one a step.
        @jax.checkpoint
        def turn(carried: Any, inputs: Any) -> Any:
            number, forcing = inputs
            drawn = None if noise is None else noise.fold_in(number)
            arguments = carried, fixed, forcing, drawn
            carried, tree = self.step.advance(
                params, model_state, arguments, forcing.get(TARGET)
            )
            return carried, self.measured(tree)

        num_steps = self.leads[-1]
        inputs = jnp.arange(1, num_steps + 1), later
        if num_steps == 1:
            _, results = turn(carried, jax.tree.map(lambda leaf: leaf[0], inputs))
            return jax.tree.map(lambda leaf: leaf[None], results)
        _, results = lax.scan(turn, carried, inputs)
        indices = np.array(self.leads) - 1
        return jax.tree.map(lambda leaf: leaf[indices], results)

    def measured(self, tree: FieldTree) -> Any:
        """What is returned of a step, from the tree after its transforms."""
        fields = self.step.chosen(tree)
        if self.normalization is None:
            return fields
        return self.normalization.normalize(fields, self.context)

    def _first(
        self, state: State, others: FieldTree, constants: FieldTree
    ) -> dict[str, Any]:
        """The carried entries of the first step, made of the state."""
        if self.normalization is not None:
            state = self.normalization.denormalize(state, self.context)
        prognostic, advance = by_source(state), self.step.rollout.advance
        assert advance is not None, "the rollout has several steps"
        fields = {
            source: {**others.get(source, {}), **prognostic.get(source, {})}
            for source in {**others, **prognostic}
        }
        first: dict[str, Any] = {"x": advance.input_of(fields, self.context)}
        if advance.pipeline.needs("x_physical"):
            first["x_physical"] = newest(advance.pipeline.state(fields))
        names = (*CARRY, *self.step.model.model_def.inputs)
        return {k: v for k, v in constants.items() if k in names} | first

    @cached_property
    def context(self) -> FieldContext:
        """Reductions over the mesh of the model."""
        return FieldContext(self.step.model.reducer)


def forecast_map(
    forecaster: DatasetForecaster,
    initial: xr.Dataset,
    steps: int | Sequence[int],
    *,
    units: Units = "physical",
) -> ForecastMap:
    """Makes a function of the initial state of the forecasts of a trained model."""
    # Of member 0; each rank of data parallelism has a copy, a sample of the batch.
    states = forecaster.states
    model = states.step.model, states.weights
    return _map_of_batch(*model, forecaster.batch(initial), steps, units)


def _map_of_batch(
    model: ParallelModel,
    weights: Any,
    batch: StateBatch,
    steps: int | Sequence[int],
    units: Units,
    rollout: Rollout | None = None,
) -> ForecastMap:
    """`forecast_map` of the samples of a batch."""
    reader, starts = batch.reader, batch.times
    numbers = [*steps] if isinstance(steps, Iterable) else [steps]
    if not numbers or not all(isinstance(k, Integral) and k >= 1 for k in numbers):
        raise ValueError(f"steps: got {steps!r}, expected numbers of steps from 1")
    leads = tuple(sorted({int(k) for k in numbers}))
    if units not in get_args(Units):
        raise ValueError(
            f"units: got {units!r}, expected one of {', '.join(get_args(Units))}"
        )
    if rollout is None:
        # As CREDIT does, reconstruct stops gradients otherwise.
        pipeline = with_gradients(reader.pipeline)
        channels = reader.schema.input_slices(), reader.schema.target_slices()
        rollout = Rollout.of(pipeline, *channels, num_steps=2)
    step = ForecastStep(model, rollout)
    fields: dict[str, dict[str, np.ndarray]] = {}

    def look(aligned: FieldTree, tasks: Sequence[Task]) -> FieldTree:
        # The fields with the names, grid and levels of the model.
        fields.update(aligned)  # type: ignore[arg-type]
        return aligned

    entries = dict(reader.at(starts, batch.tasks, look).arrays)
    state = {
        key: np.asarray(field)
        for key, field in by_key(fields).items()
        if field_type_of(key) == PROGNOSTIC
    }
    others = {
        source: {k: x for k, x in source_fields.items() if k not in state}
        for source, source_fields in fields.items()
    }
    del entries["x"]
    entries.pop("x_physical", None)
    # The last step makes an input that nothing reads: any forcing will do.
    numbers = [min(k, leads[-1] - 1) for k in range(1, leads[-1] + 1)]
    forcing = {k: reader.forcing_at(starts, k) for k in dict.fromkeys(numbers)}
    later = [forcing[k] for k in numbers]
    constants = {
        **entries,
        "fields": others,
        "later": jax.tree.map(lambda *steps: np.stack(steps), *later),
    }
    placed: dict[str, Any] = place_batch(constants, model.mesh)
    if batch.noise is not None:
        placed["noise"] = batch.noise.of(batch.tasks)
    units_of = None
    if units == "normalized":
        assert step.rollout.advance is not None, "the rollout has several steps"
        units_of = normalization(
            step.rollout.advance.pipeline, reader.data.schema, reader.pipeline
        )
        state = {k: np.asarray(x) for k, x in units_of.normalize(state).items()}
    return ForecastMap(step, weights, placed, state, leads, units_of)


def map_of_plan(
    plan: ForecastPlan,
    model: ParallelModel,
    weights: Any,
    steps: int | Sequence[int],
    units: Units = "physical",
    rollout: Rollout | None = None,
    *,
    number: int = 0,
    start: np.datetime64 | None = None,  # in place of date `number`
) -> ForecastMap:
    """`forecast_map` of a start date of a plan, a copy for each rank of data."""
    tasks = [Task(number, 0)] * model.axes.num_data
    date = plan.schedule.starts[number] if start is None else start
    noise = member_noise(plan.config.seed, plan.schedule, model)
    batch = StateBatch([date] * len(tasks), tasks, plan.reader, noise)
    return _map_of_batch(model, weights, batch, steps, units, rollout)


def check_shapes(
    actual: Mapping[str, Any], expected: Mapping[str, Any], subject: str
) -> None:
    """Checks the names and shapes of arrays by key."""
    shapes = {key: np.shape(x) for key, x in expected.items()}
    for key in {**shapes, **actual}:
        if key not in shapes or key not in actual:
            missing = "lacks" if key in shapes else "has no variable"
            raise ValueError(
                f"{subject}: {missing} {key}; expected {', '.join(map(str, shapes))}"
            )
        if np.shape(actual[key]) != shapes[key]:
            raise ValueError(
                f"{subject}: {key} has shape {np.shape(actual[key])}, expected "
                f"{shapes[key]}"
            )


def tangent_linear(
    forecast: ForecastMap, state: State, perturbation: State
) -> tuple[Fields, Fields]:
    """The forecast of a state, and the first-order change by a perturbation of it."""
    return linearized(forecast, state).with_tangents(perturbation)


def adjoint(
    forecast: ForecastMap, state: State, cotangents: Mapping[str, Any]
) -> tuple[Fields, dict[str, Float[Array, "batch _ time lat lon"]]]:
    """The forecast of a state, and the gradient of a linear function of its fields."""
    # Fields that are left out of the cotangents have none.
    return linearized(forecast, state).with_gradient(cotangents)


def linearized(forecast: ForecastMap, state: State) -> Linearized:
    """The linear map of perturbations of a state to perturbations of its forecast."""
    check_shapes(state, forecast.state, "state")
    return Linearized(forecast, {k: jnp.asarray(x) for k, x in state.items()})


@dataclass(frozen=True, eq=False)
class Linearized:
    """A forecast, linearized at a state; each product computes its steps again."""

    forecast: ForecastMap
    state: State

    def tangent_linear(self, perturbation: State) -> Fields:
        """M x, the change of the fields; see `tangent_linear`."""
        return self.with_tangents(perturbation)[1]

    def adjoint(self, cotangents: Mapping[str, Any]) -> dict[str, Any]:
        """M' y, the gradient by the state; see `adjoint`."""
        return self.with_gradient(cotangents)[1]

    def with_tangents(self, perturbation: State) -> tuple[Fields, Fields]:
        """The fields, and M x."""
        check_shapes(perturbation, self.forecast.state, "perturbation")
        return self.forecast.run("tangents", dict(self.state), dict(perturbation))

    def with_gradient(
        self, cotangents: Mapping[str, Any]
    ) -> tuple[Fields, dict[str, Any]]:
        """The fields, and M' y."""
        forecast = self.forecast
        arrays = forecast.weights, forecast.constants, dict(self.state)
        shapes = jax.eval_shape(forecast.function, *arrays)
        missing = {
            key: jnp.zeros(field.shape, field.dtype)
            for key, field in shapes.items()
            if key not in cotangents
        }
        full = {**missing, **cotangents}
        check_shapes(full, shapes, "cotangents")
        return forecast.run("gradient", dict(self.state), full)


def inner_product(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """The sum of the products of two sets of fields, in float64 on the host."""
    products = [np.vdot(np.float64(a[key]), np.float64(b[key])) for key in a]
    return float(sum(products))
