"""`rename`: keys and their order equal CREDIT's, and channels follow them."""

import re

import numpy as np
import pytest
import yaml

from credit_jax.config import ConfigError
from credit_jax.config.transforms import PreblocksConfig
from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.transforms import Phase, channel_units
from credit_jax.transforms.build import parse_pipeline, predicted_names
from credit_jax.transforms.pipeline import origins_of
from tests.transforms.cases import CONCAT, LSM, SP, TP, TSI, T, preblocks
from tests.transforms.credit_blocks import built

NEW = "A/prognostic/3d/temperature"
MAPPINGS = [
    {T: NEW},
    {T: "S/prognostic/3d/temperature", SP: T},  # names are those before the block
    {TSI: "S/prognostic/2d/tsi", LSM: "A/static/2d/LSM", "X/static/2d/no": LSM},
    {SP: "B/prognostic/2d/SP", T: NEW, LSM: "B/static/2d/LSM", TP: "A/diagnostic/2d/P"},
]


def schema():
    groups = {key: ChannelGroup(key, n, 1) for key, n in ((T, 4), (SP, 1), (LSM, 1))}
    groups |= {key: ChannelGroup(key, 1, 1) for key in (TSI, TP)}
    inputs, targets = (T, SP, LSM, TSI), (T, SP, TP)
    return ChannelSchema(
        tuple(groups[key] for key in inputs), tuple(groups[key] for key in targets)
    )


@pytest.mark.reference
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_as_credit_and_the_channels_after_it(credit, batch, mapping):
    import torch
    from credit.preblock.concat import ConcatToTensor
    from credit.preblock.rename import RenameVariables

    parts = ("input", "target")
    theirs = {
        part: {"S": {k: torch.tensor(a) for k, a in batch[part]["S"].items()}}
        for part in parts
    }
    renamed = RenameVariables(mapping=mapping)(theirs)
    ours = built("preblocks", "rename", mapping=mapping)(batch)
    for part in parts:
        keys = {source: list(own) for source, own in renamed[part].items() if own}
        assert {source: list(own) for source, own in ours[part].items()} == keys
    chain = preblocks(
        names={"type": "rename", "args": {"mapping": mapping}}, concat=CONCAT
    )
    x, y, meta = ConcatToTensor()(renamed)
    made = chain.run(Phase.BEFORE_STEP, batch)
    assert made["x"].tobytes() == x.numpy().tobytes()
    assert made["y"].tobytes() == y.numpy().tobytes()
    after = schema().after(chain)
    for part, slices in zip(
        parts, (after.input_slices(), after.target_slices()), strict=True
    ):
        described = meta[part]["_channel_map"]
        assert slices == {key: own["slice"] for key, own in described.items()}
        assert list(slices) == list(described)


def test_a_file_and_one_entry(batch, tmp_path, monkeypatch):
    (tmp_path / "names.yaml").write_text(yaml.safe_dump({T: NEW}))
    monkeypatch.setenv("NAMES", str(tmp_path))
    block = built(
        "preblocks", "rename", mapping_file="$NAMES/names.yaml", data_types=["input"]
    )
    done = block(batch)
    assert list(done["input"]) == ["S", "A"]
    assert list(done["target"]["S"]) == list(batch["target"]["S"])
    back = block.inverse(done)["input"]
    assert {key: x is batch["input"]["S"][key] for key, x in back["S"].items()} == (
        dict.fromkeys(batch["input"]["S"], True)
    )


def test_errors(batch):
    text = f"two variables of input would be called {SP}"
    with pytest.raises(ValueError, match=re.escape(text)):
        built("preblocks", "rename", mapping={T: SP})(batch)
    both = {"mapping": {T: SP}, "mapping_file": "names.yaml"}
    for args in ({}, both):
        with pytest.raises(ConfigError, match="one of mapping and mapping_file"):
            built("preblocks", "rename", **args)


def test_units_of_a_chain(files):
    """Renaming, normalization and logarithms are inverted to physical units."""
    log = {"type": "log_transform", "args": {"variables": [NEW]}}
    root = {"type": "sqrt_transform", "args": {"variables": [T]}}
    names = {"type": "rename", "args": {"mapping": {T: NEW, SP: "A/prognostic/2d/SP"}}}
    norm = {"type": "era5_normalizer", "args": files}
    fill = {"type": "fill_values", "args": {"rules": [{"search": "nan", "fill": 1.0}]}}
    device = {"type": "to_device", "args": {"device": "cuda"}}
    chain = preblocks(
        fill=fill, a=root, b=names, c=log, d=norm, e=device, concat=CONCAT
    )
    data = schema().target
    units = channel_units(chain, data)
    assert units.model.keys == (TP, NEW, "A/prognostic/2d/SP")
    physical = np.random.default_rng(0).uniform(1, 9, (2, 6, 3, 5))
    y = units.normalize(physical)
    np.testing.assert_allclose(
        y[:, 1:5], np.log(np.sqrt(physical[:, :4]) + 1e-8) - np.log(1e-8)
    )
    back = units.denormalize(y)
    order = [5, 0, 1, 2, 3, 4]
    np.testing.assert_allclose(back[:, 1:], physical[:, order[1:]], rtol=1e-9)
    tree = {"target": {"S": {}}}
    for key, place in ((T, slice(0, 4)), (SP, slice(4, 5)), (TP, slice(5, 6))):
        tree["target"]["S"][key] = physical[:, place, None].astype(np.float32)
    tree["input"] = tree["target"]
    made = chain.run(Phase.BEFORE_STEP, tree)["y"][:, :, 0]
    np.testing.assert_allclose(made[:, 1:], y[:, 1:], rtol=1e-4, atol=1e-4)


def test_names_of_predicted_variables_through_a_chain():
    """T is renamed twice, SP in the input alone; the inverse finds the names again."""
    first, second = "S/prognostic/3d/T1", "S/prognostic/3d/T2"
    section = PreblocksConfig.model_validate(
        {
            "ic_only": {"a": {"type": "rename", "args": {"mapping": {T: first}}}},
            "per_step": {
                "log": {"type": "log_transform", "args": {"variables": [TP]}},
                "b": {"type": "rename", "args": {"mapping": {first: second, TP: T}}},
                "c": {
                    "type": "rename",
                    "args": {"mapping": {SP: "S/x/2d/P"}, "data_types": ["input"]},
                },
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
