"""What is said of wrong blocks, of files that do not fit, and of wrong fields."""

from dataclasses import replace
from functools import partial

import numpy as np

from credit_jax.config import parse
from credit_jax.models.common.post_conf import Gen1PostConf
from credit_jax.named_fields.coordinates import UNKNOWN
from credit_jax.physics.files import read_arrays, read_coefficients, read_grid
from credit_jax.transforms import Advance, Phase, Rollout, notes_on_schema
from credit_jax.transforms.base import preblock
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.physics import test_post_conf
from tests.physics import world as air
from tests.support.whole_fields import field_context
from tests.transforms import test_full_levels as full
from tests.transforms import test_rollout as rollout
from tests.transforms import test_spectral as spectral
from tests.transforms.cases import (
    CONCAT,
    LSM,
    SP,
    TP,
    TSI,
    T,
    build,
    fields,
    group,
    pipeline_of,
    postblocks,
    preblocks,
)
from tests.transforms.files import FILES, MILD, masks_of
from tests.transforms.test_pipeline import Halved
from tests.transforms.toys import INPUT, TARGET

CASES = Cases("transforms")
SCALER, ROOTS, NORM = "bridgescaler_transform", "sqrt_transform", "era5_normalizer"


def block(kind, **args):
    return {"type": kind, "args": args}


def pre(kind, args, layout=(), x=None):
    """Builds a preblock, checks it with variables of the data, and runs it."""
    chain = preblocks(a=block(kind, **args), concat=CONCAT)
    groups = [group(*each) for each in layout]
    chain.check({"input": groups, "target": groups})
    if x is not None:
        chain.run(Phase.BEFORE_STEP, {"input": {"S": x}})


def post(kind, args, tree=None):
    chain = postblocks(a=block(kind, **args))
    if tree is not None:
        chain.run(Phase.AFTER_STEP, tree)


CASES.rows(
    preblocks,
    {"norm": {"type": "era5_normlizer"}, "concat": CONCAT},
    {"regrid": {"type": "regird"}, "concat": block("concat", x=1)},
    {},
    {"concat": CONCAT, "late": block(ROOTS, variables=[])},
    {"a": CONCAT, "b": CONCAT},
    name="chain",
)
Y, ZEROS = {"y_pred": np.zeros((1, 3, 1, 2, 2))}, np.zeros((1, 4, 1, 7, 7), np.float32)
HALF = {T: fields()[T], SP: fields()[SP][..., :4]}
SMOOTH, WIDE = {"scalars": [{"variables": [T]}]}, {T: np.zeros((1, 1, 1, 20, 150))}
FEW = {"channel_map": {SP: slice(0, 2)}}
SPECTRAL = {**spectral.ARGS, **spectral.EQUIANGULAR}
SPECTRAL |= {"scalar_vars": [spectral.T], "exp_vars": []}
WAVES = {key: np.zeros((1, 1, 1, 506)) for key in (spectral.T, spectral.D)}
REDUCED = {"target_grid": "reduced_gaussian"}
ROWS = {
    "an unknown argument": (NORM, {"mean_pth": "m"}),
    "data_types": (ROOTS, {"variables": [], "data_types": ["x"]}),
    "search": ("fill_values", {"rules": [{"search": "none", "fill": 1}]}),
    "op": ("fill_values", {"rules": [{"search": 1.0, "op": "=", "fill": 1}]}),
    "no names": ("rename", {}),
    "two kinds of names": ("rename", {"mapping": {T: SP}, "mapping_file": "n.yaml"}),
    "a taken name": ("rename", {"mapping": {T: SP}}, (), fields()),
    "different grids": (ROOTS, {"variables": []}, (), HALF),
    "no scalers": (SCALER, {"scaler_path": "no.json", "variables": []}),
    "no means": (NORM, FILES | {"mean_path": "nowhere.nc"}),
    "level 9": (NORM, FILES | {"levels": [1, 9]}),
    "six levels": (NORM, FILES | {"levels": None}, [(T, 4)]),
    "NaN": (NORM, FILES | {"std_path": "nan_std.nc"}),
    "a negative deviation": (NORM, FILES | {"std_path": "negative_std.nc"}),
    "units": (NORM, {"mean_path": "mean_of_pa.nc", "std_path": "std_of_k.nc"}),
    "weights of a grid": (
        "regrid",
        {"weight_file": "weights.nc", "variables": [T]},
        (),
        {T: ZEROS[..., :3]},
    ),
    "no weights": ("regrid", {"weight_file": "no_weights.nc", "variables": [T]}),
    "waves": (
        "spectral_to_grid",
        SPECTRAL | {"truncation": 20},
        (),
        {spectral.T: WAVES[spectral.T]},
    ),
    "half a wind": ("spectral_to_grid", SPECTRAL, (), WAVES),
    **{
        f"waves, {change}": ("spectral_to_grid", SPECTRAL | change, (), WAVES)
        for change in (
            {"scalar_vars": [], "vector_vars": []},
            {"scalar_vars": {spectral.T: spectral.U}},
            {"exp_vars": [spectral.Q]},
            REDUCED,
            {"delete_inputs": False},
            *(
                REDUCED | {"grid_file": f"{name}.nc"}
                for name in ("no_points", "shifted", "upside_down")
            ),
        )
    },
}
for _name, _row in ROWS.items():
    CASES.call(f"preblock: {_name}", partial(pre, *_row))
for _name, _row in {
    "an unknown type": ("tracer_fixr", {}),
    "no scalers": (SCALER, {"scaler_path": "no.json", "variables": []}),
    "no levels": ("geopotential_diagnostic", {"level_info_file": "no_levels.nc"}),
    "no fields": ("exp_transform", {"variables": []}, {"input": {}, **Y}),
    "no entry": (NORM, MILD | {"key": "other"}, {"y_processed": {"S": fields()}, **Y}),
    "no output": ("reconstruct", {}, {"channel_map": {}}),
    "no channels": ("reconstruct", {"in_key": "x"}, {"x": 0, "channel_map": {}}),
    "two of three channels": ("reconstruct", {}, Y | FEW),
    "few rows": ("laplace_filter", SMOOTH, {"y_processed": {"S": WIDE}, **Y}),
    "masks of 39": ("wet_mask_samudra", {"conf": masks_of(), "key": "y_pred"}, Y),
    "no masks": ("wet_mask_samudra", {"conf": masks_of("stats")}),
    "a level too many": (full.KIND, full.ARGS | {"levels": [1, 138]}),
    "levels from below": (full.KIND, full.ARGS | {"levels": [*full.LEVELS[::-1]]}),
    "no coefficients": (full.KIND, full.ARGS | {"a_model_name": "a"}),
    "two levels of five": (
        full.KIND,
        full.ARGS | {"levels": [10, 137]},
        {**full.columns(), **Y},
    ),
}.items():
    CASES.call(f"postblock: {_name}", partial(post, *_row))


def of_scalers(name, args, *row, scalers):
    pre(SCALER, scalers(name, **args), *row)


BY_POINT = {"variables": [T], "spatial_variables": [SP]}
CASES.rows(
    of_scalers,
    ("standard", {}, [(T, 4), (TP, 1)]),
    ("standard", {}, [(TP, 1), (LSM, 1)]),
    ("standard", {}, [(T, 3)]),
    ("standard", {"spatial_variables": [T]}, [(T, 4)]),
    ("standard", BY_POINT, [(T, 4), (SP, 1)]),
    name="scaler",
)


@CASES.case
def scalers_of_other_points(scalers):
    of_scalers(
        "standard_by_point",
        {"variables": [SP]},
        (),
        {SP: ZEROS[:, :1]},
        scalers=scalers,
    )


@CASES.case
def scalers_of_other_columns(scalers):
    of_scalers("columns", {"variables": [T]}, (), {T: ZEROS}, scalers=scalers)


@CASES.case
def blocks_of_one_file_with_other_spatial_variables(scalers):
    first = scalers("standard_by_point", variables=[SP])
    second = {key: first[key] for key in ("scaler_path", "variables")}
    of = {"input": [group(SP, 1)], "target": [group(SP, 1)]}
    twice = block(SCALER, **first)
    preblocks(a=twice, b=twice, concat=CONCAT).check(of)
    preblocks(a=twice, b=block(SCALER, **second), concat=CONCAT).check(of)


# Phases, and where blocks run.
WARM, AGAIN = {"warm": block("warm", by=1.0)}, {"again": block("read_again")}
CENTER = {"center": block("center_output")}
TOTAL = {"post_rollout": {"rain": {"type": "rain_total"}}}
for _name, _call in {
    "a phase of preblocks": lambda toys: preblocks(**WARM, concat=CONCAT),
    "a phase of postblocks": lambda toys: postblocks(**WARM),
    "on the host and traced": lambda toys: postblocks(**CENTER, **AGAIN),
    "on the host": lambda toys: postblocks(**CENTER).run(Phase.AFTER_STEP, Y),
    "traced": lambda toys: postblocks(**AGAIN).postprocess(INPUT, TARGET),
    "traced after the rollout": lambda toys: pipeline_of(
        {"per_step": {"concat": CONCAT}}, TOTAL
    ).run(Phase.AFTER_ROLLOUT, {}, field_context(4)),
}.items():
    CASES.call(_name, _call)
CASES.call("a name that is taken", lambda: preblock("concat")(Halved))


# CREDIT passes silently over what selects nothing, and over forcing without statistics.
def notes(a, *targets):
    chain = preblocks(a=a, b=block(ROOTS, variables=SP), concat=CONCAT)
    inputs = [group(T, 4), group(SP, 1), group(TSI, 1)]
    return notes_on_schema(chain, {"input": inputs, "target": [*map(group, *targets)]})


OF_RAIN = ([T, SP, "S/diagnostic/2d/rain"], [4, 1, 1])
CASES.rows(
    notes,
    (block("log_transform", variables=[T, "S/prognostic/2d/Sp"]), *OF_RAIN),
    (block(NORM, **FILES), *OF_RAIN),
    (block(NORM, **FILES), [T, SP], [4, 1]),
    name="note",
)


# Levels.
@CASES.case
def scalers_of_other_levels(tmp_path):
    pipeline = full.scaled_by(tmp_path / "s.json", [*full.VALUES])
    pipeline.at(full.layout((100.0, 300.0, 500.0, 925.0)), UNKNOWN)


CASES.rows(
    lambda kind: full.numbered(kind).at(full.layout(full.NUMBERS[::-1]), UNKNOWN),
    *("hybrid_level_interp", "semilagrangian_advection"),
    name="turned levels",
)


# What a forecast feeds back.
def advance(*blocks):
    Advance(rollout.regridding(*blocks), {}, {})


OF_SP, OF_TSI = (block(ROOTS, variables=[key]) for key in (SP, TSI))
FORCING = rollout.interpolation(T, "S/dynamic_forcing/3d/F")
CASES.call("roots before a regrid", partial(advance, OF_TSI))
CASES.call("roots before levels", partial(advance, OF_SP, rollout.interpolation(T)))
CASES.call("levels of forcing, too", partial(advance, FORCING))


def not_undone(before, after, first=None):
    pipeline = rollout.in_training(before, after)
    if first is not None:
        own = {"ic_only": first, "per_step": {"concat": CONCAT}}
        pipeline = replace(
            pipeline, blocks=(pipeline_of(own).blocks[0], *pipeline.blocks)
        )
    channels = {T: slice(0, 4), SP: slice(4, 5)}
    Rollout.of(pipeline, channels, channels, num_steps=1)
    return lambda: Rollout.of(pipeline, channels, channels, num_steps=2)


LOG, EXP = {"log": rollout.LOG}, {"exp": rollout.EXP}
MILDLY = {"norm": block(NORM, **MILD)}
CASES.rows(
    not_undone,
    (LOG, {"exp": block("exp_transform", variables=[SP], eps=2e-2)}),
    (MILDLY, {"norm": block(NORM, **MILD | {"std_path": "mild_std_other.nc"})}),
    (MILDLY, EXP, LOG),
    (LOG | MILDLY, EXP | MILDLY),
    name="not undone",
)


# Physics.
def of_files(function, file, *args, tmp_path, **options):
    path = air.write_files(tmp_path, 5).get(file, file)
    return lambda: function(path, *args, **options)


HALVES = ("ERA5_Lev_Info.nc", "a_half", "b_half")
SIGMA = {"hybrid": True, "midpoint": True}
for _name, _call in {
    "no such file": partial(of_files, read_arrays, "ERA5_lev_info.nc", ["a_half"]),
    "no variable": partial(of_files, read_arrays, "physics", ["hyai", "hyam"]),
    "level 0": partial(read_coefficients, *HALVES, (0,), between=True),
    **{
        f"grid {names}": partial(of_files, read_grid, "physics", names, **SIGMA)
        for names in (["lon2d", "lat2d", "plev"], ["lon2d", "plev", "hyai", "hybi"])
    },
}.items():
    CASES.call(_name, _call)


@CASES.case
def net_energy_of_hybrid_levels_without_pressure(tmp_path):
    kind, args = air.net_energy(air.write_files(tmp_path, 5))["net energy, sigma"]
    return partial(build, kind, {k: v for k, v in args.items() if k != "sp_var"})


@CASES.case
def a_gen1_fixer_of_a_variable_that_is_not_there(tmp_path):
    name = {"precipitation_name": ["TP"]}
    test_post_conf.build("hybrid, midpoint", tmp_path, **name)


CASES.call("noise", lambda: parse(Gen1PostConf, {"skebs": {"activate": True}}))


def on_two_levels(name, tmp_path):
    """Files of other levels than the fields, which a block meets in a step alone."""
    row = air.blocks(air.write_files(tmp_path, 5))[name]
    tree = {**air.tree(5), **Y}
    deep = tree["y_processed"]["S"].items()
    tree["y_processed"] = {"S": {key: x[:, :2] for key, x in deep}}
    return partial(post, *row, tree)


NAMES = ("mass", "geopotential", "pressure levels", "advection", "hybrid levels")
CASES.rows(on_two_levels, *NAMES, name="two levels:")


# Attributes of derived fields are those of the variables that they are made of.
@CASES.case
def derived_fields():
    t, q = (f"A/prognostic/3d/{name}" for name in ("T", "Q"))
    z, msl = "A/derived_diagnostic/3d/Z", "A/derived_diagnostic/2d/MSL"
    levels = {"interp_variables": [q], "temperature_var": t, "geopotential_var": z}
    names = block("rename", mapping={"B/prognostic/3d/Q": q})
    blocks = {
        "z": block("geopotential_diagnostic", output_name=z),
        "msl": block("mslp_diagnostic", output_name=msl),
        "p": block("pressure_interp_diagnostic", **levels),
    }
    pre = {"per_step": {"names": names, "concat": CONCAT}}
    humidity = {"long_name": "Humidity", "units": "kg kg**-1"}
    pipeline = pipeline_of(pre, {"per_step": blocks})
    found = pipeline.described({"B/prognostic/3d/Q": humidity, t: {"units": "C"}})
    return [f"{key}: {dict(own)}" for key, own in found.items()]


@CASES.case
def all_levels():
    known = {full.U: {"long_name": "Wind", "units": "m/s"}}
    levels = build(full.KIND, full.ARGS)
    described = levels.describe(known).items()
    coordinates = levels.effects.levels.items()
    return [f"{key}: {own}" for key, own in (*coordinates, *described)]
