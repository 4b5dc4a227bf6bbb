"""The configs in `configs/` are valid, and those of the demo fit together."""

from pathlib import Path

import pytest

from credit_jax.config import dump_config, load_config
from credit_jax.plan import plan_run
from tests.support.configs import write_base

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
DEMOS = ("tp2_domain2", "fsdp8", "domain8")


def test_the_configs_are_there():
    names = {path.stem for path in CONFIGS}
    assert names >= {"demo", *DEMOS, "wxformer_1deg", "wxformer_025deg"}, names


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_is_sound_and_raises_no_warning(path, tmp_path):
    config = load_config(path)
    if config.trainer.finetune is not None:  # its base is a run of another config
        base = write_base(config.trainer.finetune.base, tmp_path)
        config = load_config(path, [f"trainer.finetune.from={base}"])
    assert plan_run(config, with_data=False).notes is not None


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_header_says_what_it_is(path):
    header = path.read_text().split("\n\n")[0]
    for word in ("# Result", "# Hardware", "# Time", f"--config configs/{path.name}"):
        assert word in header, header


@pytest.mark.parametrize("name", DEMOS)
def test_the_demos_differ_in_their_mesh_only(name):
    folder = CONFIGS[0].parent
    demo, other = (
        dump_config(load_config(folder / f"{stem}.yaml")) for stem in ("demo", name)
    )
    batch = []
    for config in (demo, other):
        config.pop("save_loc")
        trainer, block = config["trainer"], config["trainer"].pop("parallelism")
        dp = trainer.pop("num_devices") // (block["tensor"] * block["domain"])
        assert trainer["train_batch_size"] == trainer.pop("valid_batch_size")
        batch.append(dp * trainer.pop("train_batch_size"))
    assert batch == [8, 8], batch
    assert demo == other
