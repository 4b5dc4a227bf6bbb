"""Functions of other libraries as models: `wrap`, and `model.type: module:factory`."""

from __future__ import annotations

import functools
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from pydantic import Field, PositiveInt

from credit_jax.models.common.config import MODELS, ModelConfig, ModelEntry, Side
from credit_jax.models.model_def import ModelDef, Weights
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import Parameter, from_param_spec, named_variables
from credit_jax.nn.run_blocks import run_block
from credit_jax.parallel.params.spec import ParamSpec

# Collections of Linen, variables of NNX, modules of Haiku and nodes of Equinox that a
# forward pass in training changes.
_CHANGING = ("batch_stats", "BatchStat", "RngKey", "RngCount", "Cache")
_CHANGING += ("mean_ema", "var_ema", "StateIndex")


class FunctionConfig(ModelConfig):
    """The `model:` section of a function: `type: module:factory`, or `FILE.py:factory`.

    `factory(x, y, **args)` gets shapes of one sample, `x` and `y` of (channel, time,
    lat, lon), and returns (apply, params) or (apply, params, loss), as `wrap` takes
    them.

    Attributes:
        args: further arguments of the factory.
        image_height, image_width: grid of input and output.
        frames, output_frames: time steps of input and output.
        input_channels, output_channels: channels of a frame; by default those of the
            data.
        levels: levels of the sources of data whose `levels` is null.
        noise: whether `apply` gets a key in evaluation, too: each member of an
            ensemble has its own.
        saved: names (`jax.ad_checkpoint.checkpoint_name`) of values in `apply` that
            `trainer.activation_checkpoint` saves; all others are recomputed.
    """

    only_data_parallel: ClassVar[bool] = True

    type: str
    args: dict[str, Any] = Field(default_factory=dict)
    image_height: Side
    image_width: Side
    frames: PositiveInt = 1
    output_frames: PositiveInt = 1
    input_channels: PositiveInt
    output_channels: PositiveInt
    levels: PositiveInt = 1
    noise: bool = False
    saved: tuple[str, ...] = ()

    def channel_sum(self, direction: str) -> str:
        """Returns the terms of `input_channels` or `output_channels`, for errors."""
        return f"{direction}_channels, of the data with model.levels {self.levels},"

    @property
    def draws_noise(self) -> bool:  # type: ignore[override]
        """Whether a forward pass draws noise, in evaluation, too."""
        return self.noise


def wrap(
    apply: Callable[..., Array],
    params: Any,
    x: Sequence[int],
    y: Sequence[int],
    *,
    loss: Callable[..., Array] | None = None,
    saved: Sequence[str] = (),
    noise: bool = False,
) -> ModelDef:
    """Makes a model of a function, whatever library it is written with.

    The model trains on data-parallel meshes as those of this package do: its parameters
    and the state of their optimizer may be sharded (FSDP), frozen, averaged, or adapted
    (LoRA) by path. Meshes that split fields or layers (domain, tp) need layers that
    exchange halos and sums; see docs/adding_a_model.md.

    Args:
        apply: function (params, x) or (params, x, rng) -> y of local samples, each of
            which must not depend on the others of its batch. `rng` is a key in training
            (dropout) and None in evaluation, but with `noise`; such a function is
            applied to each sample alone, so that draws are equal on every mesh.
        params: tree of initial parameters. An array at two paths is one parameter.
            Leaves that are no floating-point arrays are constants.
        x, y: shapes of one sample, (channel, time, lat, lon).
        loss: function (params, x, y) or (params, x, y, rng) -> (batch,) that gives the
            training loss of each sample, such as that of a denoiser or of latent
            variables. It takes the place of the loss of the training step; metrics
            and validation compare what `apply` returns. None for that of the step.
        saved: names (`jax.ad_checkpoint.checkpoint_name`) of values in `apply` that
            activation checkpointing saves; all others are recomputed.
        noise: whether `rng` is a key in evaluation, too.

    Returns:
        A model for `build_parallel_model`, whose `init` gives the values of `params`;
        its `tree` makes such a tree of weights by path.

    Raises:
        ValueError: a leaf is a running statistic or the state of a random generator,
            which a function cannot change; two leaves have one path; or shapes are not
            those of samples on one grid.

    >>> def apply(params, x):
    ...     return jnp.einsum("bctij,cd->bdtij", x, params["kernel"])
    >>> shape = (3, 1, 4, 8)
    >>> wrapped = credit_jax.wrap(apply, {"kernel": jnp.eye(3)}, shape, shape)
    >>> list(wrapped.param_specs)
    ['kernel']
    """
    if len(x) != 4 or len(y) != 4 or tuple(x[2:]) != tuple(y[2:]):
        raise ValueError(
            f"x and y are {tuple(x)} and {tuple(y)}; expected shapes of one sample, "
            "(channel, time, lat, lon), on one grid"
        )
    channels, frames, rows, columns = x
    config = FunctionConfig(
        type="function",
        image_height=rows,
        image_width=columns,
        frames=frames,
        output_frames=y[1],
        input_channels=channels,
        output_channels=y[0],
        noise=noise,
        saved=tuple(saved),
    )
    function = Function(apply, params, loss)
    return ModelDef(config, partial(FunctionModule, lambda: function))


class Function:
    """A function and its tree of parameters, taken apart by path."""

    def __init__(self, apply: Any, params: Any, loss: Any = None) -> None:
        for name, call in {"apply": apply, "loss": loss or apply}.items():
            if not callable(call):
                raise ValueError(
                    f"{name} is a {type(call).__name__}; expected a function: (apply, "
                    "params) or (apply, params, loss)"
                )
        self.apply, self.loss = apply, loss
        # No variable may change in a forward pass.
        nodes, _ = jax.tree_util.tree_flatten_with_path(
            params,
            is_leaf=lambda node: (
                isinstance(node, nnx.Variable) or type(node).__name__ in _CHANGING
            ),
        )
        for keys, leaf in nodes:
            path = jax.tree_util.keystr(keys, simple=True, separator="/")
            names = {*path.split("/"), type(leaf).__name__}
            if changing := names.intersection(_CHANGING):
                raise ValueError(
                    f"params has {path}, of {changing.pop()}: a function cannot change "
                    "it; expected parameters alone (nnx.split(model, nnx.Param, ...)); "
                    "make statistics constants of `apply`, and draw with its rng"
                )
        leaves, self.structure = jax.tree_util.tree_flatten_with_path(params)
        self.initial: dict[str, Any] = {}
        # A path of `initial`, or (constant,).
        self.leaves: list[str | tuple[Any]] = []
        paths: dict[int, str] = {}
        for keys, leaf in leaves:
            path = jax.tree_util.keystr(keys, simple=True, separator="/")
            path = path.removesuffix("/value").removesuffix("/raw_value")
            is_array = isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)
            if not is_array or not jnp.issubdtype(leaf.dtype, jnp.floating):
                self.leaves.append((leaf,))
                continue
            # Tied parameters are one array at several places.
            path = paths.setdefault(id(leaf), path)
            if path in self.initial and self.initial[path] is not leaf:
                raise ValueError(f"params: two leaves have the path {path!r}")
            self.initial[path] = leaf
            self.leaves.append(path)

    def tree(self, weights: Mapping[str, Array]) -> Any:
        """Returns the tree of parameters with these arrays."""
        return self.structure.unflatten(
            weights[leaf] if isinstance(leaf, str) else leaf[0] for leaf in self.leaves
        )


class _Body(nnx.Module):
    """The whole of `apply` or `loss` as one block: parameters are gathered at once."""

    def __init__(
        self,
        call: Callable[..., Array],
        tree: Callable[[Mapping[str, Array]], Any],
        variables: Mapping[str, Parameter],
    ) -> None:
        self.call, self.tree = call, tree
        for path, variable in variables.items():
            setattr(self, path, variable)

    def __call__(
        self, arrays: Sequence[Array], context: Context, *, noise: bool
    ) -> Any:
        params = self.tree(
            {path: v[...] for path, v in named_variables(self, Parameter)}
        )

        def call(*arguments: Any) -> Any:
            try:
                return self.call(params, *arguments)
            except Exception as error:
                shapes = ", ".join(str(x.shape) for x in arguments if x is not None)
                where = f"{self.call.__name__} of params and arrays {shapes}"
                raise user_error(where, error) from error

        # Of (params, *arrays, rng).
        parameters = inspect.signature(self.call).parameters.values()
        named = [p for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
        if len(named) < len(arrays) + 2:
            return call(*arrays)
        key = context.key
        if noise and context.noise is not None:
            key = context.noise.key
        if key is None:
            return call(*arrays, None)

        def of_sample(key: Array, *arrays: Array) -> Array:
            return call(*(array[None] for array in arrays), key)[0]

        if not key.ndim:
            samples = context.samples(len(arrays[0]))
            key = jax.vmap(partial(jax.random.fold_in, key))(samples)
        return jax.vmap(of_sample)(key, *arrays)


def user_error(what: str, error: Exception) -> ValueError:
    """The error of a user's function as one line, with the line of its file."""
    here, library = str(Path(__file__).parents[1]), sysconfig.get_path("stdlib")
    files = [
        f" ({frame.filename}, line {frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(x in frame.filename for x in ("site-packages", here, library))
    ]
    text = f"{what}: {type(error).__name__}: {error}{files[-1] if files else ''}"
    if "scan" in text and "varying" in text:
        text += "; a carry that begins with a constant begins with 0 * x instead"
    return ValueError(text)


class FunctionModule(nnx.Module):
    """A wrapped function as a module: `apply` of "x" with its parameters by path."""

    def __init__(self, make: Callable[[], Function], config: FunctionConfig) -> None:
        try:
            # Without a device, where that is possible.
            leaves: Mapping[str, Any] = jax.eval_shape(lambda: make().initial)
        except jax.errors.JAXTypeError:
            leaves = make().initial
        for path, leaf in leaves.items():
            # Of a matrix, so that it can have adapters.
            out = (leaf.ndim - 1,) if leaf.ndim in (2, 3) else None
            dims, dtype = (None,) * leaf.ndim, jnp.dtype(leaf.dtype)
            spec = ParamSpec(leaf.shape, dims, matrix_out=out, dtype=dtype)
            setattr(self, path, from_param_spec(spec))
        self.make, self.config = functools.cache(make), config

    @property
    def function(self) -> Function:
        """The function and the values of its parameters."""
        # Not inside of a trace, whose values it would keep.
        with jax.ensure_compile_time_eval():
            return self.make()

    @property
    def initial(self) -> Weights:
        """The values that the parameters begin with, by path."""
        return self.function.initial

    def __call__(
        self, inputs: Mapping[str, Array], context: Context
    ) -> Float[Array, "batch channel_out time rows lon"]:
        """Applies the function to the local samples."""
        x, config = inputs["x"], self.config
        y = self._run(self.function.apply, (x,), context)
        shape = (len(x), *config.output.shape(1)[1:])
        return self._checked("apply", y, shape, x)

    def losses(self, x: Array, y: Array, context: Context) -> Float[Array, " batch"]:
        """The training loss of each local sample; see `ModelDef.has_loss`."""
        assert self.function.loss is not None, "the function has a loss"
        losses = self._run(self.function.loss, (x, y), context)
        return self._checked("loss", losses, (len(x),), x)

    def _run(
        self, call: Callable[..., Array], arrays: Sequence[Array], context: Context
    ) -> Array:
        variables = dict(named_variables(self, Parameter))
        block = _Body(call, self.function.tree, variables)
        remat = replace(context.remat, saved=self.config.saved)
        cast = tuple(map(context.precision.cast, arrays))
        return run_block(
            replace(context, remat=remat), block, cast, noise=self.config.noise
        )

    def _checked(
        self, name: str, result: Array, shape: tuple[int, ...], x: Array
    ) -> Array:
        if result.shape != shape:
            raise ValueError(
                f"model.type {self.config.type!r}: {name} returns {result.shape} of x "
                f"{x.shape}; expected {shape}"
                + (", (batch, channel, time, lat, lon)" if len(shape) > 1 else "")
            )
        return result.astype(x.dtype)


def _of_factory(factory: Callable[..., Any]) -> ModelEntry:
    """The entry of a factory that a config names."""

    def module(config: FunctionConfig) -> FunctionModule:
        shapes = [
            jax.ShapeDtypeStruct(spec.shape(1)[1:], jnp.float32)
            for spec in (config.x, config.output)
        ]
        name = f"model.type {config.type!r}"

        def make() -> Function:
            try:
                result = factory(*shapes, **config.args)
            except jax.errors.JAXTypeError:
                raise
            except Exception as error:
                call = f"{name}: {factory.__name__}{inspect.signature(factory)} of x, y"
                raise user_error(f"{call} and model.args", error) from error
            if not isinstance(result, tuple) or len(result) not in (2, 3):
                raise ValueError(
                    f"{name}: the factory returns a {type(result).__name__}; expected "
                    "(apply, params) or (apply, params, loss)"
                )
            return Function(*result)

        return FunctionModule(make, config)

    return ModelEntry(FunctionConfig, module)


MODELS.of_function = _of_factory
