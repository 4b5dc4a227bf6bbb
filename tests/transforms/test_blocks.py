"""Blocks of single fields beside CREDIT's: values, gradients, shards, inverses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from credit_jax.config.transforms import PreblocksConfig
from credit_jax.data import ChannelSchema
from credit_jax.named_fields.coordinates import GridCoordinates
from credit_jax.transforms import Phase, channel_units
from credit_jax.transforms.build import parse_pipeline, predicted_names
from credit_jax.transforms.channels import Reconstruct
from credit_jax.transforms.pipeline import origins_of
from tests.support import assert_close, make_mesh
from tests.support.whole_fields import field_context, field_spec, run_on_mesh
from tests.transforms.cases import (
    COLUMNS,
    CONCAT,
    LEVELS,
    LSM,
    ROWS,
    SP,
    TP,
    TSI,
    T,
    build,
    compare,
    credit_block,
    fields,
    group,
    host_results,
    postblocks,
    preblocks,
    tensors,
)
from tests.transforms.files import (
    FILES,
    LAT,
    LATITUDE,
    LON,
    MASK_AXES,
    SCALERS,
    masks_of,
)

LOGS = [{"base": "e", "eps": 1e-8}, {"base": "2", "eps": 1e-3}]
LOGS += [{"base": "10", "eps": 0.5}]
# Whole key, prefix of a key, everything; a string, which CREDIT splits; nothing.
SELECTIONS = [[T], ["S/prognostic/2d"], [], T, ["S/prognostic/3d/TT"]]
RULES = [
    {"search": "nan", "fill": -1.5},
    {"search": 0.0, "fill": 1e-4},
    {"search": 0.1, "op": "<=", "fill": 7},
    {"search": 2, "op": ">", "fill": 2.0},
    {"search": 1.0, "op": "!=", "fill": 0.75},
    {"search": 0.0, "op": "<", "fill": 0.0},
]
POST = "y_target_processed"
# Type, arguments, bound of "there and back" (postblocks have no inverse).
POINTWISE = [
    *(("log_transform", {"variables": [T], **own}, 1e-5) for own in LOGS),
    *(("exp_transform", {"variables": [T], **own}, None) for own in LOGS),
    *(("sqrt_transform", {"variables": own}, 1e-6) for own in SELECTIONS),
    *(
        ("square_transform", {"variables": own, "key": POST}, None)
        for own in SELECTIONS
    ),
    *(
        ("fill_values", {"rules": own, "variables": [T]}, None)
        for own in (RULES[:4], RULES, RULES[::-1])
    ),
]


@pytest.mark.parametrize(("kind", "args", "back"), POINTWISE)
def test_pointwise_blocks(credit, kind, args, back):
    is_post = kind in ("exp_transform", "square_transform")
    section = "postblocks" if is_post else "preblocks"
    part = args.get("key", "y_processed") if is_post else "target"
    ours, theirs = build(kind, args, section), credit_block(kind, args, section)
    x = fields(high=2.0 if kind == "exp_transform" else 9.0)
    if kind == "fill_values":
        x = fields(low=-1.0, high=3.0)
        for key in x:
            x[key][0, :, :, 0, 0], x[key][1, :, :, 1, 1] = np.nan, 0.0
            x[key][1, :, :, 2, 2], x[key][0, :, :, 3, 3] = 0.1, 1.0
        expected = theirs({part: {"S": tensors(x)}})[part]["S"]
        for key, own in host_results(ours, part, x).items():
            same = np.array_equal(own, expected[key].detach().numpy(), equal_nan=True)
            assert same, "bitwise, NaN too"
        x = {key: np.nan_to_num(own) for key, own in x.items()}
    host, expected = compare(ours, theirs, part, x)
    if kind in ("fill_values", "square_transform"):
        for key, own in expected.items():
            assert np.array_equal(host[key], own), "bitwise"
    if back is not None:
        again = ours.inverse({part: {"S": host}})[part]["S"]
        assert_close(again[T], x[T], back, "there and back")


@pytest.mark.parametrize("data_types", [["input"], ["target"], None])
def test_data_types(credit, data_types):
    args = {"variables": [], "data_types": data_types}
    block = build("sqrt_transform", args, "preblocks")
    for part in ("input", "target"):
        changed = data_types is None or part in data_types
        host = host_results(block, part, fields())
        assert np.array_equal(host[T], fields()[T]) != changed
    theirs = credit_block("sqrt_transform", args, "preblocks")
    assert theirs.data_types == list(block.data_types)


@pytest.fixture
def exact_roots(monkeypatch):
    """Makes torch's square root exact as in IEEE 754; its own may be a bit off."""
    import torch

    exact = lambda x: torch.tensor(np.sqrt(x.detach().numpy()))  # noqa: E731
    monkeypatch.setattr(torch, "sqrt", exact)


@pytest.mark.slow(but=["standard", "minmax", "columns", "fast", "standard_by_point"])
@pytest.mark.usefixtures("exact_roots")
@pytest.mark.parametrize("name", SCALERS)
def test_scalers_in_both_directions(scalers, name):
    """The distribution function has kinks at centroids, and is steep near the ends.

    By that rounding of the quantile is amplified. Other scalers are bitwise equal.
    """
    kind, exact = "bridgescaler_transform", SCALERS[name][0] != "Quantile"
    values, gradients = (1e-6, 2e-6) if exact else (1e-5, 2e-4)
    by_point, part = bool(SCALERS[name][2]), "target" if SCALERS[name][2] else "input"
    shards = (1, 2, 3, 4, 8) if by_point else (1, 3)
    bounds = {"values": values, "gradients": gradients, "shards": shards}
    args = scalers(name)
    forward = build(kind, args, "preblocks")
    theirs = credit_block(kind, args, "preblocks")
    results = [compare(forward, theirs, part, fields(), **bounds)]
    back = forward.inverse({part: {"S": results[0][0]}})[part]["S"]
    # Of quantiles of a few numbers the ends are clipped, and do not come back.
    for key, x in fields().items() if exact or not by_point else ():
        assert_close(back[key], x, 1e-6 if exact else 1e-2, "there and back")
    scaled = host_results(forward, "target", fields())
    pair = build(kind, args), credit_block(kind, args)
    results.append(compare(*pair, "y_processed", scaled, **bounds))
    for host, expected in results:
        for key in expected if exact else ():
            assert host[key].tobytes() == expected[key].tobytes(), (name, key)


def test_scalers_of_some_variables_in_a_tensor(scalers):
    kind, args = "bridgescaler_transform", scalers("standard", variables=[T])
    block = build(kind, args | {"data_types": ["target"]}, "preblocks")
    assert np.array_equal(host_results(block, "input", fields())[T], fields()[T])
    done = host_results(block, "target", fields())
    assert np.array_equal(done[SP], fields()[SP])
    assert not np.array_equal(done[T], fields()[T])
    inverse = build(kind, args | {"method": "inverse_transform"}, "preblocks")
    again = host_results(inverse, "target", done)
    assert_close(again[T], fields()[T], 1e-6, "there and back")
    slices, shapes = {SP: slice(0, 1), T: slice(1, 5)}, {SP: (1, 1), T: (4, 1)}
    described = {k: {"slice": slices[k], "orig_shape": shapes[k]} for k in slices}
    path = {"scaler_path": scalers("minmax")["scaler_path"]}
    for args in ({}, path, path | {"variables": [T]}, path | {"variables": []}):
        theirs = credit_block("flatten_to_tensor", args)(
            {
                "y_processed": {"S": tensors(fields())},
                "metadata": {"target": {"_channel_map": described}},
            }
        )["y_pred"]
        tree = {"y_processed": {"S": fields()}, "channel_map": slices}
        done = build("flatten_to_tensor", args)(tree)
        assert done["y_pred"][:, :, 0].tobytes() == theirs.detach().numpy().tobytes()
        assert np.array_equal(done["y_processed"]["S"][T], fields()[T])


@pytest.mark.parametrize("dims", [4, 5])
def test_reconstruct(credit, rng, dims):
    import torch

    y = rng.normal(size=(2, LEVELS + 2, 1, 3, 5)).astype(np.float32)
    y = y if dims == 5 else y[:, :, 0]
    slices = {T: slice(0, 4), SP: slice(4, 5), TP: slice(5, 6)}
    shapes = {T: (4, 1), SP: (1, 1), TP: (1, 1)}
    described = {k: {"slice": slices[k], "orig_shape": shapes[k]} for k in slices}
    meta = {"target": {"_channel_map": described}}
    theirs = credit_block("reconstruct", {})(
        {"y_pred": torch.tensor(y), "metadata": meta}
    )["y_processed"]
    chain = postblocks(reconstruct={"type": "reconstruct"})
    ours = chain.run(Phase.AFTER_STEP, {"y_pred": y, "channel_map": slices})
    assert list(ours["y_processed"]["S"]) == list(theirs["S"])
    for key, field in ours["y_processed"]["S"].items():
        assert np.array_equal(field, theirs["S"][key].numpy()), key
    tree = {"x": y, "input_channel_map": slices}
    again = Reconstruct(in_key="x", out_key="input")(tree)["input"]["S"]
    for key, field in ours["y_processed"]["S"].items():
        assert np.array_equal(again[key], field), "by channels of the input"
    for detach in (True, False):
        block = Reconstruct(detach=detach)

        def total(y, block=block):
            done = block({"y_pred": y, "channel_map": {SP: slice(0, 1)}})
            return done["y_processed"]["S"][SP].sum()

        gradient = jax.grad(total)(jnp.ones((1, 1, 1, 2, 2)))
        assert float(gradient.sum()) == (0.0 if detach else 4.0)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(
    ("structured", "args"),
    [
        (True, {}),
        (True, {"flip_axis": [-2, -1]}),
        (True, {"flip_axis": [-1, -3]}),
        (True, {"reshape_to_xy": False}),
        (False, {}),
        (False, {"reshape_to_xy": False}),
    ],
)
def test_regrid(credit, structured, args):
    """By weights of ESMF, of fields on a grid and of points."""
    path = "weights.nc" if structured else "weights_to_points.nc"
    args = {"weight_file": path, "variables": [T], **args}
    theirs = credit_block("regrid", args, "preblocks")
    ours = build("regrid", args, "preblocks")
    flat = {T: fields()[T].reshape(2, 4, 1, ROWS * COLUMNS)}
    for given in (fields(), flat):
        expected = theirs({"input": {"S": tensors(given)}})["input"]["S"]
        found = host_results(ours, "input", given)
        for key, x in expected.items():
            assert found[key].shape == tuple(x.shape)
            assert_close(found[key], x.detach().numpy(), 1e-6, key)
    if theirs.dst_lat is not None and args.get("reshape_to_xy", True):
        assert np.array_equal(ours.effects.grid.latitude, theirs.dst_lat)
        assert np.array_equal(ours.effects.grid.longitude, theirs.dst_lon)


def test_the_grid_and_the_units_after_a_regrid():
    def chain(path):
        args = {"weight_file": path, "variables": [T, SP]}
        roots = {"type": "sqrt_transform", "args": {"variables": [SP]}}
        return preblocks(
            regrid={"type": "regrid", "args": args}, roots=roots, concat=CONCAT
        )

    pipeline = chain("weights.nc")
    assert pipeline.grid.shape == (3, 2)
    assert np.array_equal(pipeline.grid.latitude, LATITUDE)
    units = channel_units(pipeline, [group(T, 4), group(SP, 1)])
    y = units.normalize(np.concatenate(list(fields().values()), axis=1))
    assert y.shape == (2, 5, 1, 3, 2)
    back = units.denormalize(y)
    assert_close(back[:, 4], y[:, 4] ** 2, 1e-6, "on the new grid")
    assert preblocks(concat=CONCAT).grid is None
    for name in ("latitude", "longitude"):
        curved = chain(f"curved_{name}.nc")
        assert curved.grid.shape == (3, 2)
        assert curved.grid.latitude is None


NEW = "A/prognostic/3d/temperature"
MAPPINGS = [
    {T: NEW},
    {T: "S/prognostic/3d/temperature", SP: T},  # names are those before the block
    {TSI: "S/prognostic/2d/tsi", LSM: "A/static/2d/LSM", "X/static/2d/no": LSM},
    {SP: "B/prognostic/2d/SP", T: NEW, LSM: "B/static/2d/LSM", TP: "A/diagnostic/2d/P"},
]


def schema():
    groups = {key: group(key, 4 if key == T else 1) for key in (T, SP, LSM, TSI, TP)}
    of = lambda *keys: tuple(groups[key] for key in keys)  # noqa: E731
    return ChannelSchema(of(T, SP, LSM, TSI), of(T, SP, TP))


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_rename_and_the_channels_after_it(credit, batch, mapping):
    parts, args = ("input", "target"), {"mapping": mapping}
    theirs = {part: {"S": tensors(batch[part]["S"])} for part in parts}
    renamed = credit_block("rename", args, "preblocks")(theirs)
    ours = build("rename", args, "preblocks")(batch)
    for part in parts:
        keys = {source: list(own) for source, own in renamed[part].items() if own}
        assert {source: list(own) for source, own in ours[part].items()} == keys
    chain = preblocks(names={"type": "rename", "args": args}, concat=CONCAT)
    x, y, meta = credit_block("concat", {}, "preblocks")(renamed)
    made = chain.run(Phase.BEFORE_STEP, batch)
    assert made["x"].tobytes() == x.detach().numpy().tobytes()
    assert made["y"].tobytes() == y.detach().numpy().tobytes()
    after = schema().after(chain)
    slices = after.input_slices(), after.target_slices()
    for part, own in zip(parts, slices, strict=True):
        described = meta[part]["_channel_map"]
        assert own == {key: each["slice"] for key, each in described.items()}
        assert list(own) == list(described)


def test_a_file_of_names_for_one_entry(batch, tmp_path, monkeypatch):
    (tmp_path / "names.yaml").write_text(yaml.safe_dump({T: NEW}))
    monkeypatch.setenv("NAMES", str(tmp_path))
    args = {"mapping_file": "$NAMES/names.yaml", "data_types": ["input"]}
    block = build("rename", args, "preblocks")
    done = block(batch)
    assert list(done["input"]) == ["S", "A"]
    assert list(done["target"]["S"]) == list(batch["target"]["S"])
    back = block.inverse(done)["input"]["S"]
    assert {key: x is batch["input"]["S"][key] for key, x in back.items()} == (
        dict.fromkeys(batch["input"]["S"], True)
    )


def test_units_of_a_chain():
    """Renaming, normalization and logarithms are inverted to physical units."""
    names = {T: NEW, SP: "A/prognostic/2d/SP"}
    blocks = {
        "fill_values": {"rules": [{"search": "nan", "fill": 1.0}]},
        "sqrt_transform": {"variables": [T]},
        "rename": {"mapping": names},
        "log_transform": {"variables": [NEW]},
        "era5_normalizer": FILES,
        "to_device": {"device": "cuda"},
    }
    steps = {kind: {"type": kind, "args": args} for kind, args in blocks.items()}
    chain = preblocks(**steps, concat=CONCAT)
    units = channel_units(chain, schema().target)
    assert units.model.keys == (TP, NEW, "A/prognostic/2d/SP")
    physical = np.random.default_rng(0).uniform(1, 9, (2, 6, 3, 5))
    y = units.normalize(physical)
    np.testing.assert_allclose(
        y[:, 1:5], np.log(np.sqrt(physical[:, :4]) + 1e-8) - np.log(1e-8)
    )
    back = units.denormalize(y)
    np.testing.assert_allclose(back[:, 1:], physical[:, :5], rtol=1e-9)
    places = {T: slice(0, 4), SP: slice(4, 5), TP: slice(5, 6)}
    own = {k: physical[:, x, None].astype(np.float32) for k, x in places.items()}
    made = chain.run(Phase.BEFORE_STEP, {"input": {"S": own}, "target": {"S": own}})
    np.testing.assert_allclose(made["y"][:, 1:, 0], y[:, 1:], rtol=1e-4, atol=1e-4)


def test_names_of_predicted_variables_through_a_chain():
    """T is renamed twice, SP in the input alone; the inverse finds the names again."""
    first, second = "S/prognostic/3d/T1", "S/prognostic/3d/T2"
    rename = lambda mapping, **more: {  # noqa: E731
        "type": "rename",
        "args": {"mapping": mapping, **more},
    }
    section = PreblocksConfig.model_validate(
        {
            "ic_only": {"a": rename({T: first})},
            "per_step": {
                "log": {"type": "log_transform", "args": {"variables": [TP]}},
                "b": rename({first: second, TP: T}),
                "c": rename({SP: "S/x/2d/P"}, data_types=["input"]),
            },
        }
    )
    names, moved = predicted_names(section)
    assert (names[T], names[TP], names.get(SP, SP)) == (second, T, SP)
    assert moved == set()
    blocks = parse_pipeline(section, types=["rename"]).blocks
    for block in blocks:
        block.transform.open()
    assert origins_of(blocks[-2:]) == {second: first, T: TP}


def test_names_of_predicted_fields_of_coefficients():
    """Without the files of the grid: U and V are vorticity and divergence in data."""
    from tests.transforms import test_spectral as spectral

    args = spectral.ARGS | {"grid_file": "nowhere.nc"}
    rename = {"type": "rename", "args": {"mapping": {spectral.U: T}}}
    block = {"type": "spectral_to_grid", "args": args}
    steps = {"per_step": {"spectral": block, "names": rename}}
    names, moved = predicted_names(PreblocksConfig.model_validate(steps))
    assert names[spectral.VO] == T
    assert names[spectral.D] == spectral.V
    assert names[spectral.LNSP] == spectral.SP
    keys = {spectral.T, spectral.VO, spectral.D, spectral.LNSP}
    assert moved == keys


KIND = "wet_mask_samudra"


@pytest.mark.parametrize(("kind", "count"), [("thermo", 39), ("thermo_dynamic", 77)])
def test_wet_masks(credit, rng, kind, count):
    import torch

    x = rng.normal(size=(2, count, 1, LAT, LON)).astype(np.float32)
    theirs = credit_block(KIND, {"conf": masks_of(kind=kind), "key": "y_pred"})
    expected = theirs({"y_pred": torch.tensor(x)})["y_pred"].numpy()
    for name in ("data", "lev"):
        block = build(KIND, {"conf": masks_of(name, kind), "key": "y_pred"})
        assert np.array_equal(block({"y_pred": x})["y_pred"], expected)
    run = lambda x, mesh=None: block(  # noqa: E731
        {"y_pred": x}, field_context(LAT, mesh)
    )["y_pred"]
    assert np.array_equal(jax.jit(run)(jnp.asarray(x)), expected)
    mesh = make_mesh(domain=3)
    found = run_on_mesh(lambda x: run(x, mesh), mesh, x, out_specs=field_spec(mesh))
    assert np.array_equal(np.asarray(found)[..., :LAT, :], expected)


def test_masks_are_matched_by_their_coordinates(rng):
    """Whatever the order of their rows and columns; others are refused."""
    axes = (tuple(values.tolist()) for values in MASK_AXES.values())
    data = GridCoordinates(*axes, where="w.nc")
    x = rng.normal(size=(1, 39, 1, LAT, LON)).astype(np.float32)

    def masked(name):
        block = build(KIND, {"conf": masks_of(name), "key": "y"})
        return block.at({}, data)({"y": x})["y"]

    assert np.array_equal(masked("turned"), masked("located"))
    assert not np.array_equal(masked("located"), x)
    with pytest.raises(ValueError, match=r"moved\.zarr: 5 latitudes run from -57"):
        masked("moved")
