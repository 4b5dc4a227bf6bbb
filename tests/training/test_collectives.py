"""The collectives of compiled training steps, each of which is accounted for."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.extend import core
from jax.interpreters import partial_eval

from benchmarks.compiled_step import model_block, trace_step
from benchmarks.scale.hlo import collectives
from credit_jax.models.flops import flops_of
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build
from credit_jax.named_fields import FieldContext, FieldTree
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.params.fsdp import ShardingRules
from credit_jax.parallel.placement import place_batch
from credit_jax.training.optimizer import adamw
from credit_jax.training.state import init_state
from credit_jax.training.step import make_train_step
from tests.models.cases import CASES
from tests.support import make_mesh

# A model with a loop over two equal blocks, and a stage with long windows of one token.
BLOCK = {**CASES["wxformer plain"].block, "depth": [0, 0, 2, 1]}
TRAINED = {"dp4": {"dp": 4}, "tp2_domain2": {"tp": 2, "domain": 2}}
KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
)


def _collectives(text: str) -> dict[str, list[tuple[int, ...]]]:
    """Returns the shape of (the first result of) every HLO collective, by kind."""
    found: dict[str, list[tuple[int, ...]]] = {kind: [] for kind in KINDS}
    pattern = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(?:-start)?\(")
    for result, kind in pattern.findall(text):
        shape = re.findall(r"\w+\[([\d,]*)\]", result)[0]
        found[kind].append(tuple(int(n) for n in shape.split(",") if n))
    return found


def _loss(tree: FieldTree, context: FieldContext) -> Any:
    return context.mean((tree["y_pred"] - tree["y"]) ** 2)


@cache
def _step_on(mesh: str) -> tuple[Any, str]:
    """Returns a training step before and after compilation."""
    lowered = _traced("train", TRAINED[mesh]).lower()
    return lowered, lowered.compile().as_text()


def _traced(
    kind: str, degrees: dict[str, int], block: Any = BLOCK, remat: str = "none"
) -> Any:
    mesh = make_mesh(**degrees)
    model = build_parallel_model(block, mesh, ac_mode=remat)
    model_def = model.model_def
    optimizer = adamw(max_norm=1.0)
    state = init_state(model, optimizer, jax.random.key(0))
    grid = model_def.image_height, model_def.image_width
    x = np.zeros((4, model_def.input_channels, 1, *grid), np.float32)
    y = np.zeros((4, model_def.output_channels, 1, *grid), np.float32)
    if kind == "forecast":
        batch = place_batch({"x": x}, mesh)
        forward = compile_program(model.apply, mesh)
        return forward.trace(state.params, state.model_state, batch)
    rate = optax.constant_schedule(1e-3)
    step = make_train_step(model, optimizer, _loss, schedule=rate)
    train = compile_program(step, mesh, donate_argnums=0)
    batch = place_batch({"x": x[None], "y": y[None]}, mesh)
    return train.trace(state, batch)


def _sent(traced: Any) -> Counter[str]:
    """Counts the collectives of a traced step by primitive, without unused results."""
    found: Counter[str] = Counter()

    def count(jaxpr: Any, times: int) -> None:
        for equation in jaxpr.eqns:
            name, params = equation.primitive.name, equation.params
            found[name] += times
            turns = times * (params["length"] if name == "scan" else 1)
            for value in params.values():
                for item in value if isinstance(value, tuple | list) else (value,):
                    if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                        count(getattr(item, "jaxpr", item), turns)

    jaxpr = traced.jaxpr.jaxpr
    count(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0], 1)
    kinds = ("ppermute", "all_to_all", "all_gather", "reduce_scatter")
    return Counter({kind: found[kind] for kind in kinds})


def _gathers(lowered: Any) -> int:
    """Counts the gathers of a step, also in functions that it calls several times.

    Equal blocks of a stage are calls of one function up to JAX 0.10.
    """
    _, *functions = re.split(r"func\.func \w+ @(\w+)", lowered.as_text())
    bodies = dict(zip(functions[::2], functions[1::2], strict=True))

    def count(name: str) -> int:
        called = re.findall(r"call @(\w+)", bodies[name])
        return bodies[name].count("stablehlo.all_gather") + sum(map(count, called))

    return count("main")


def _blocks_of(path: str) -> int:
    """Returns the number of blocks that have the parameter at `path`."""
    stage = re.match(r"stages/(\d+)/blocks/", path)
    return BLOCK["depth"][int(stage[1])] if stage else 1


@pytest.fixture(scope="module")
def domain_forecast() -> dict[str, list[tuple[int, ...]]]:
    lowered = _traced("forecast", {"domain": 2}).lower()
    return _collectives(lowered.compile().as_text())


@pytest.mark.slow
def test_long_attention_is_one_pair_of_all_to_all(domain_forecast: Any) -> None:
    """One pair per block, to long windows and back; none for windows of one token."""
    stages = zip(BLOCK["depth"], BLOCK["global_window_size"], strict=True)
    expected = 2 * sum(depth for depth, window in stages if window > 1)
    assert len(domain_forecast["all-to-all"]) == expected


def test_convolutions_move_halos_only(domain_forecast: Any) -> None:
    """Permutes send a few rows; no activation is gathered or scattered.

    Group norms gather the mean and the sum of squares of each shard.
    """
    assert domain_forecast["collective-permute"], "halos must move"
    rows = [shape[1] for shape in domain_forecast["collective-permute"]]
    largest = max(max(kernels) for kernels in BLOCK["cross_embed_kernel_sizes"])
    assert max(rows) <= largest // 2, f"a permute carries {max(rows)} rows"
    gathered = [shape[:2] for shape in domain_forecast["all-gather"]]
    assert set(gathered) == {(2, 2)}, "no activation is gathered"
    assert not domain_forecast["reduce-scatter"]


@pytest.mark.slow
def test_fsdp_gathers_parameters_twice_and_scatters_gradients_once() -> None:
    """The forward and backward passes gather each split parameter, and nothing else.

    XLA on CPU removes the barriers that separate the second gather and merges the two.
    They are therefore counted before compilation.
    """
    lowered, compiled = _step_on("dp4")
    found, num_gathers = _collectives(compiled), _gathers(lowered)
    model_def = build(BLOCK)
    axes = MeshAxes.from_mesh(make_mesh(dp=4))
    split = {
        path: param_spec.unstack().shape
        for path, param_spec in model_def.param_specs.items()
        if ShardingRules().shard_dim(param_spec, axes) is not None
    }
    shapes = {tuple(sorted(shape)) for shape in split.values()}
    gathered = [tuple(sorted(n for n in s if n > 1)) for s in found["all-gather"]]
    strangers = [s for s in gathered if s not in shapes]
    assert not strangers, f"gathered, but no parameter: {strangers[:5]}"
    # no gradient by the input: the first embedding's kernel is not gathered again
    once = sum(path.startswith("stages/0/embed") for path in split)
    blocks = {path: _blocks_of(path) for path in split}
    expected = 2 * sum(blocks.values()) - once
    assert num_gathers == expected, f"{num_gathers} gathers, expected {expected}"
    assert len(gathered) >= sum(blocks.values()), f"{len(gathered)} for {blocks}"
    assert len(found["reduce-scatter"]) == sum(blocks.values())
    assert not found["all-to-all"], "nothing else moves"
    assert not found["collective-permute"], "nothing else moves"


@pytest.mark.slow
@pytest.mark.parametrize("mesh", TRAINED)
def test_no_loop_holds_collectives_on_cpu(mesh: str) -> None:
    """XLA on CPU may run a loop's collectives together with later ones, and hang."""
    found = collectives(_step_on(mesh)[1])
    assert found
    looped = [each for each in found if each.times != 1]
    assert not looped, f"in loops: {looped[:3]}"


@pytest.mark.slow
def test_one_device_keeps_its_loop_over_equal_blocks() -> None:
    """Compile time is constant in depth."""
    assert "stablehlo.while" in _traced("train", {}).lower().as_text()


@pytest.mark.slow
def test_recomputed_blocks_send_nothing_a_second_time() -> None:
    """Results of collectives are saved; a decoder norm sends once in each pass."""
    kept, again = (
        _sent(_traced("train", {"domain": 4}, remat=remat))
        for remat in ("none", "full")
    )
    print(kept)
    assert kept == again
    norms = 2 * len(build(BLOCK).config.dim) - 2
    assert kept["all_gather"] == kept["reduce_scatter"] == norms


@pytest.mark.slow
def test_eight_shards_share_the_025_degree_step() -> None:
    """A shard has an eighth of the operations plus 5 %, and sends at most 145 times."""
    block = model_block("025deg")
    _, one = trace_step(block, "1", batch=1, remat="full")
    _, eight = trace_step(block, "domain8", batch=1, remat="full")
    ratio, sent = flops_of(one.jaxpr) / flops_of(eight.jaxpr), _sent(eight)
    print(f"{ratio:.2f} times less work, {dict(sent)}")
    assert ratio >= 7.6
    assert sent["all_to_all"] <= 16
    assert sent["all_to_all"] + sent["ppermute"] <= 145
    assert sent["all_gather"] == sent["reduce_scatter"] == 6
