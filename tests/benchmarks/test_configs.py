"""CREDIT's own configs: the verdict on each, and two training steps of some."""

import math
from functools import cache

import pytest

from benchmarks.configs.survey import find_configs, survey
from benchmarks.configs.table import (
    BEGIN,
    DOCS,
    END,
    FOLDER,
    docs_notes,
    docs_rows,
    docs_table,
    outcome,
)
from benchmarks.configs.training import train_two_steps

# Why a config of generation 2 trains neither with credit_jax nor with CREDIT.
NO_MODEL = "no config to train: it has no model"
OLD_TRAINER = (
    "refused: data.source.ERA5.dataset_type: missing; this key is required (and 2 more)"
)
REASONS = {
    "credit_smoke_test_v2": OLD_TRAINER,
    "credit_smoke_test_v2_025deg": OLD_TRAINER,
    "multi_source_data": NO_MODEL,
    "weatherbench2_era5_wxformer": NO_MODEL,
    "weatherbench2_era5_wxformer_tiny": NO_MODEL,
    "wxformer_npj_era5_028deg": "refused: preblocks.norm: blocks stand in ic_only or "
    "per_step, and CREDIT refuses others, too; move it to preblocks.per_step.norm",
}


@cache
def verdicts():
    return [survey(path, FOLDER) for path in find_configs(FOLDER)]


def named(name):
    return next(v for v in verdicts() if v.name.endswith(f"/{name}.yml"))


@pytest.mark.slow
def test_every_config_of_generation_2():
    """Each trains, or is reported with one clear reason."""
    ours = [v for v in verdicts() if v.kind == "gen2"]
    assert len(ours) == 30
    found = {v.name: outcome(v) for v in ours if not v.trains}
    assert {k.split("/")[-1].removesuffix(".yml"): v for k, v in found.items()} == (
        REASONS
    )


def test_the_table_of_the_page():
    """`python -m benchmarks.configs --docs` writes it; here without CREDIT's part."""
    text = DOCS.read_text().partition(BEGIN)[2].partition(END)[0]
    without = [""] * len(verdicts())
    rows = docs_rows(verdicts(), without)
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    assert [line[2:].split(" | ")[:-1] for line in lines] == [row[:-1] for row in rows]
    assert "\n".join(docs_notes(verdicts(), without)) in text


@pytest.mark.slow
@pytest.mark.reference
def test_what_credit_itself_says(credit):
    from benchmarks.configs.credit_verdict import credit_verdict

    verdicts_of_credit = [credit_verdict(path) for path in find_configs(FOLDER)]
    written = set(DOCS.read_text().splitlines())
    table = docs_table(verdicts(), verdicts_of_credit)
    assert [row for row in table.splitlines() if row not in written] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        # A Zarr store of another layout, logarithms, fills, quantile scalers.
        "wb2_perlmutter_tiny",
        # GRIB files of two products.
        "integration_test_hrrr",
        # FuXi from two states, seven forecast steps, converted from generation 1.
        "fuxi_6h_multi_step",
    ],
)
def test_two_steps(name, tmp_path):
    found = train_two_steps(named(name).config, tmp_path)
    print(found)
    assert math.isfinite(found.train_loss)
