"""What the `model:` sections of all models refuse, warn of, and have as defaults."""

from __future__ import annotations

import math
from ast import literal_eval
from collections.abc import Mapping
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from credit_jax.config.load import FRAMES_OF_DATA
from credit_jax.models.channel_change import other_shapes
from credit_jax.models.conversion import credit_key
from credit_jax.models.diffusion.process import DiffusionConfig
from credit_jax.models.flops import count_flops
from credit_jax.models.graph.graph import read_edges
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import MODELS, build, parse_model
from credit_jax.models.unet.unet import UNetKeys
from credit_jax.nn.context import Context
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.mesh.model_fit import model_problems
from credit_jax.parallel.params.precision import default_mp_policy
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.models import cases
from tests.models.cases import Section
from tests.models.conftest import section_of
from tests.models.toy import TOY, toy_batch
from tests.support import make_mesh
from tests.support.credit_modules import credit_attribute

CASES = Cases("models")


def changed(section: Section, changes: Section) -> Section:
    """Returns a section with other values, or without them ("ABSENT").

    "a.b" is a key of its section a.
    """
    new = dict(section)
    for key, value in changes.items():
        first, _, rest = key.partition(".")
        new[first] = changed(new[first], {rest: value}) if rest else value
    return {key: value for key, value in new.items() if value != "ABSENT"}


def build_changed(name: str, change: Section, edge_path: str) -> None:
    build(changed(section_of(name, edge_path), change))


# A case is a line of the file: a name of `cases.CASES`, and changes of its section.
HEADINGS = [line for line in CASES.blocks() if line[0] == "'" and line[-1] == "}"]
CASES.rows(build_changed, *map(literal_eval, HEADINGS))


def on_mesh(name: str, edge_path: str, *, dims: bool = False, **options: Any) -> None:
    """Models that a mesh does not fit; with `dims`, of degrees in place of a mesh."""
    keys = ("dp", "tp", "domain", "ep")
    degrees = {key: options.pop(key) for key in keys if key in options}
    if degrees or dims:
        world = ParallelDims(**degrees, world_size=math.prod(degrees.values()))
        options["mesh"] = world if dims else world.build_mesh()
    if count := options.pop("devices", None):
        options["devices"] = jax.devices()[:count]
    if dtype := options.pop("dtype", None):
        options |= {"mp_policy": default_mp_policy(dtype), "mesh": make_mesh()}
    build_parallel_model(section_of(name, edge_path), **options)


def of(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, **options}


CASES.rows(
    on_mesh,
    of("wxformer earth", tp=2, dims=True, devices=8),
    of("wxformer earth", domain=2, dims=True, ulysses_degree=2),
    of("wxformer earth", domain=2, dims=True, ulysses_degree=1, etp=1),
    of("wxformer earth", domain=2, devices=2),
    of("wxformer uneven", domain=4, ulysses_degree=4),
    of("wxformer uneven", tp=2, domain=4, ulysses_degree=2),
    of("debugger frames", domain=4, ulysses_degree=2),
    of("wxformer experts", ep=8),
    of("wxformer earth", ep=8),
    of("wxformer experts", tp=2, etp=3),
    of("wxformer earth", dtype="float16", fp8=True),
    name="mesh",
)


def degrees(name: str, edge_path: str, **degrees: int) -> Any:
    return list(model_problems(parse_model(section_of(name, edge_path)), degrees))


CASES.rows(degrees, of("fuxi shifted", tp=4), of("swin oblong", tp=4), name="degrees")
CASES.rows(degrees, of("nextgen levels", tp=3), name="degrees")


def forward(name: str) -> None:
    """Without what it needs beside inputs: noise, or statistics of batch norms."""
    model_def = build(cases.CASES[name].block)
    weights = jax.eval_shape(model_def.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct(model_def.inputs["x"].shape(1), "float32")
    jax.eval_shape(lambda w, x: model_def.apply(w, {"x": x}, Context()), weights, x)


CASES.rows(forward, "ensemble frozen", "crossformer coordinates", name="forward")


@CASES.case
def a_model_that_draws_noise() -> None:
    model = build_parallel_model(TOY, make_mesh())
    inputs = {k: jnp.asarray(x) for k, x in toy_batch(4).items() if k != "y"}
    model.apply(*model.init(jax.random.key(0)), inputs)


def key_of(path: str, *, alone: bool = False) -> None:
    model_def = build(cases.CASES["debugger frames"].block)
    credit_key(path) if alone else credit_key(path, model_def)


CASES.rows(key_of, {"path": "a/b", "alone": True}, {"path": "linear/kernl"})


@CASES.case
def an_edge_file_of_another_grid(edge_path: str) -> None:
    block = section_of("graph attributes", edge_path)
    parse_model({**block, "image_height": 8, "image_width": 7}).check_files()


@CASES.case
def a_missing_edge_file(tmp_path: Path) -> None:
    read_edges(str(tmp_path / "edges.nc"))


@CASES.case
def operations_of_a_loop_of_unknown_length() -> None:
    loop = partial(lax.while_loop, lambda x: jnp.sum(x) < 9.0, lambda x: x @ x)
    count_flops(loop, jnp.ones((2, 2)))


def channels(name: str, edge_path: str, **change: Any) -> Any:
    """What weights for other channels cannot be taken from."""
    base = section_of(name, edge_path)
    return other_shapes(build(base | change), build(base))[:1]


CASES.rows(channels, of("wxformer earth", dim_head=8), of("unet two frames"), name="of")


def test_what_asks_for_nothing_is_accepted() -> None:
    block = section_of("crossformer mirror", "")
    nothing = {"attention_type": "None", "diffusion": False}
    nothing["post_conf"] = {"activate": False, "tracer_fixer": {"activate": True}}
    config: Any = parse_model({**block, **nothing})
    assert config.attention_type is None
    assert hash(config) == hash(parse_model(block)), "equal configs, one program"
    assert not any(config.problems())


# By type: the class of CREDIT, and its defaults that are not those here: CREDIT fails
# with them, or they are no key here.
_WX, _TOLD = "models.wxformer.", {"frames": 2, "self_condition": False}
DEFAULTS: Mapping[str, tuple[str, Section]] = {
    "crossformer": ("models.crossformer.CrossFormer", {}),
    "camulator": ("models.camulator.Camulator", {}),
    "crossformer_downscaling": (
        *(f"{_WX}crossformer_downscaling.DownscalingCrossFormer", {}),
    ),
    "nextgen_wxformer": (f"{_WX}wxformer_next.NextGenWXFormer", {}),
    "crossformer-ensemble": (f"{_WX}crossformer_ensemble.CrossFormerWithNoise", {}),
    "crossformer-diffusion": (
        *(f"{_WX}crossformer_diffusion.CrossFormerDiffusion",),
        {**_TOLD, "condition": True},
    ),
    "process": ("diffusion.GaussianDiffusion", {"model": ANY}),
    "fuxi": ("models.fuxi.Fuxi", {}),
    "swin": ("models.swin.SwinTransformerV2Cr", {"norm_layer": ANY}),
    "wrf": ("models.swin_wrf.WRFTransformer", {}),
    "dscale": ("models.dscale_wrf.DscaleTransformer", {}),
    "unet": ("models.unet.SegmentationModel", {"architecture": None}),
    "unet_downscaling": (
        *("models.unet_downscaling.DownscalingSegmentationModel",),
        {"architecture": None},
    ),
    "unet-diffusion": (
        *("models.unet_diffusion.UnetDiffusion", {**_TOLD, "condition": False}),
    ),
    "graph": ("models.graph.GraphResTransfGRU", {"edge_path": ANY}),
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_the_defaults_are_those_of_credit(credit: Any, kind: str):
    """Every parameter of CREDIT's class is a key, if only to be refused."""
    where, others = DEFAULTS[kind]
    config = DiffusionConfig if kind == "process" else MODELS[kind].config
    constructor = credit_attribute(*where.rsplit(".", 1)).__init__
    for name, parameter in signature(constructor).parameters.items():
        theirs = parameter.default
        if name in ("self", "args", "kwargs"):
            continue
        if name in others:
            assert theirs == others[name], name
        elif name in config.model_fields:
            ours = config.model_fields[name].get_default(call_default_factory=True)
            pair = isinstance(ours, tuple) and isinstance(theirs, int)
            expected = (theirs,) * len(ours) if pair else theirs
            assert theirs is Parameter.empty or ours == expected, name
        else:
            assert name in {*config.ignored, *config.unavailable}


def test_the_defaults_make_a_model():
    diffusion = {"diffusion": {"image_size": [640, 1280]}}
    for kind in ("dscale", "crossformer-diffusion", "unet-diffusion"):
        section = {"type": kind} | ({} if kind == "dscale" else diffusion)
        assert not any(parse_model(section).problems()), kind


def test_models_that_take_their_frames_from_the_data():
    """The layer of configs names them, as it knows no models."""
    named = {
        kind for kind, entry in MODELS.items() if issubclass(entry.config, UNetKeys)
    }
    assert named == set(FRAMES_OF_DATA)
