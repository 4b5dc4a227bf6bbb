"""Keys of CREDIT's own configs that it does not read are notes, however spelled."""

import ast
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from credit_jax.config import Config, build_config
from credit_jax.config.base import ConfigWarning
from credit_jax.config.credit_keys import NEVER_READ
from credit_jax.config.data import DataConfig
from credit_jax.config.trainer import TrainerConfig
from tests.config.example import example

FOLDER = Path(__file__).parents[1] / "reference/credit_configs"
SECTIONS = {"": Config, "data": DataConfig, "trainer": TrainerConfig}
# Modules of CREDIT's training and forecasts of generation 2.
GEN2 = (
    "applications/train_gen2.py",
    "applications/rollout_gen2.py",
    "trainers/trainer_gen2.py",
    "trainers/rollout_utils.py",
    "datasets/gen_2/*.py",
    "parallel/*.py",
    "samplers.py",
    "output_gen2.py",
)
# They give names to what is read from the sources, or are keys of a source.
GEN2_NAMES = {
    "dataset_type",
    "diagnostic_variables",
    "save_loc",
    "surface_variables",
    "variables",
}


def written_by_credit(section):
    """The keys of a section in all configs of CREDIT."""
    keys = set()
    for path in FOLDER.rglob("*.yml"):
        config = yaml.load(path.read_text(), Loader=yaml.SafeLoader)
        if isinstance(config.get("data"), dict) and "model" in config:
            keys |= set(config.get(section) or {} if section else config)
    return keys


def never_read(section):
    """The keys of a section that are noted as read by no code of generation 2."""
    ignored = SECTIONS[section].ignored
    return {key for key, why in ignored.items() if why == NEVER_READ}


@pytest.mark.slow(but=["data"])
@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_credits_configs_is_known(section):
    cls = SECTIONS[section]
    known = {field.alias or name for name, field in cls.model_fields.items()}
    known |= {*cls.ignored, *cls.unavailable}
    assert written_by_credit(section) <= known
    assert never_read(section) <= written_by_credit(section)


@pytest.mark.reference
def test_no_code_of_generation_2_reads_them():
    root = Path(find_spec("credit").origin).parent
    read = set()
    for pattern in GEN2:
        for path in root.glob(pattern):
            read |= set(_keys(ast.parse(path.read_text())))
    assert "forecast_len" in read, "the modules that read the config"
    assert read & {key for each in SECTIONS for key in never_read(each)} <= GEN2_NAMES


def _keys(tree):
    """The names that are looked up in a mapping."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield node.slice.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("get", "pop", "setdefault")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.args[0].value


def test_steps_beyond_the_forecast_are_a_note():
    """CREDIT's trainer passes over them, and `credit convert` leaves them."""
    config = example(data__forecast_len=2, data__backprop_on_timestep=[1, 3, 7])
    with pytest.warns(ConfigWarning, match=r"of steps 3, 7: data\.forecast_len is 2"):
        assert build_config(config).backprop_on_timestep == (1,)


def test_flat_padding_is_that_of_generation_1():
    """CREDIT's gen2 pads nothing for these keys, which `credit convert` leaves."""
    with pytest.warns(ConfigWarning, match="gen2 pads only with padding_conf"):
        config = build_config(example(model__pad_lat=8, model__pad_lon=8))
    assert not {"pad_lat", "pad_lon"} & set(config.model)
    conf = {"activate": True, "mode": "earth", "pad_lat": [1, 1], "pad_lon": [1, 1]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_config(example(model__padding_conf=conf, model__pad_lat=None))
