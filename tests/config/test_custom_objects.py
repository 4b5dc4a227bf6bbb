"""Objects of the user's own: files, modules, entry points, and what is refused."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from credit_jax.config import build_config, custom_objects
from credit_jax.config.components import REGISTRIES, extensions
from credit_jax.config.custom_objects import is_registered, register_objects
from credit_jax.config.sources.registry import source_config
from credit_jax.config.sources.source import SourceConfig
from credit_jax.data.sources.registry import SOURCES
from credit_jax.losses import LOSSES
from tests.config.example import example
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("custom_objects")

# One object of each type, made of those of credit_jax.
MODULE = """
from credit_jax.config.sources.sections import LocalConfig
from credit_jax.data.sources.local import open_local
from credit_jax.data.sources.registry import SourceEntry
from credit_jax.losses import LOSSES
from credit_jax.metrics import METRICS
from credit_jax.models.registry import MODELS
from credit_jax.transforms import TRANSFORMS

my_loss = LOSSES["mse"]
my_metric = METRICS["rmse"]
my_model = MODELS["debugger"]
my_pre = TRANSFORMS["preblocks"]["concat"]
my_post = TRANSFORMS["postblocks"]["reconstruct"]
my_source = SourceEntry(LocalConfig, open_local)
number = 3

def my_trainer(model, optimizer, loss, **options):
    pass

class Plain:
    pass
"""
TYPES = {
    **{"my_loss": "loss", "my_metric": "metric", "my_model": "model"},
    **{"my_pre": "preblock", "my_post": "postblock", "my_source": "dataset"},
    "my_trainer": "trainer",
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes modules that can be imported; returns the function that does."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text=MODULE):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return tmp_path / f"{name}.py"

    return write


def section(path, **names):
    entries = {
        k: {"object_type": v, "module_path": str(path)} for k, v in names.items()
    }
    return {"custom_objects": entries}


@pytest.mark.parametrize("by", ["file", "module"])
def test_every_type_of_objects(module, by):
    path = module("my_objects")
    place = path if by == "file" else "my_objects"
    register_objects(section(place, **TYPES))
    for name, kind in TYPES.items():
        assert name in REGISTRIES[kind]
        assert is_registered(kind, name)
    assert source_config("my_source") is SOURCES["local"].config
    objects = section(place, my_source="dataset", my_pre="preblock")
    config = build_config(
        example(data__source__ERA5__dataset_type="my_source", **objects)
    )
    assert config.data.source["ERA5"].dataset_type == "my_source"


def test_a_file_runs_once_until_it_changes(module, capsys):
    path = module("talks", MODULE + "print('runs')")
    wanted = section(path, my_loss="loss", my_metric="metric")
    for _ in range(2):
        register_objects(wanted)
    assert capsys.readouterr().out == "runs\n"
    path.write_text(MODULE + "my_loss = LOSSES['mae']")
    register_objects(wanted)
    assert LOSSES["my_loss"] is LOSSES["mae"]


def test_installed_packages_offer_theirs(module, monkeypatch):
    """An entry point is imported only if a config names it."""
    module("offers")
    module("unasked", "raise SystemExit")
    points = (
        EntryPoint("my_loss", "offers", "credit_jax.loss"),
        EntryPoint("their_loss", "unasked:their_loss", "credit_jax.loss"),
    )
    monkeypatch.setattr(custom_objects, "_entry_points", lambda: points)
    build_config(example(loss__training_loss="my_loss"))
    assert LOSSES["my_loss"] is LOSSES["mse"]
    assert "unasked" not in sys.modules


def test_a_package_refers_to_modules_only(module, tmp_path):
    module("inside")
    elsewhere = tmp_path / "package"
    elsewhere.mkdir()
    register_objects(section("inside", my_loss="loss"), package=elsewhere)
    assert "my_loss" in LOSSES


@pytest.mark.slow
def test_sub_packages_are_imported_by_name():
    """The readers of satellites and forecast centers: the core imports none of them."""
    text = """
import sys
from credit_jax import forecast, training
from credit_jax.config.base import ConfigError, parse
from credit_jax.config.data import DataConfig
from credit_jax.data.sources.registry import SOURCES
from credit_jax.plan import plan_run
assert not any(name.startswith("credit_jax.extensions.noaa") for name in sys.modules)
for source in ({"dataset_type": "hrr"}, {"dataset_type": "hrrr_nat", "no": 1}):
    assert "credit_jax.extensions.noaa" not in sys.modules
    try:
        parse(DataConfig, {"source": {"a": source}})
    except ConfigError as error:
        print(error)
print(SOURCES.find("hrrr_nat", "").open.__module__)
print(*sorted(name for name in sys.modules if "credit_jax.extensions.noaa." in name))
"""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert "dataset type 'hrr' is not available; there are: local, " in done.stdout
    assert "gefs, gfs, goes, hrrr, hrrr_nat, hrrr_subh" in done.stdout
    assert "source.a.no: unknown key" in done.stdout
    noaa = "credit_jax.extensions.noaa"
    modules = f"{noaa}.hrrr {noaa}.sections"
    assert done.stdout.endswith(f"{noaa}.hrrr\n{modules}\n")


@pytest.mark.parametrize("name", extensions("dataset"))
def test_sub_packages_have_what_is_offered(name):
    for _ in range(2):
        section = source_config(name)
    assert issubclass(section, SourceConfig)
    assert SOURCES.find(name, "").config is section
    assert not is_registered("dataset", name)


# What is refused.


TORCH = """
import torch
class Loss(torch.nn.Module):
    pass
instance = Loss()
"""
CREDIT = """
from credit.postblock.base import BasePostblock
class Block(BasePostblock):
    pass
"""
REFUSED = {
    "a class of torch": (TORCH, "Loss", "loss"),
    "an object of torch": (TORCH, "instance", "metric"),
    "a class of CREDIT": (CREDIT, "Block", "postblock"),
    "torch is not installed": ("import torch.none", "A", "model"),
    "a number": (MODULE, "number", "loss"),
    "a class": (MODULE, "Plain", "dataset"),
    "another type": (MODULE, "my_loss", "metric"),
    "no such object": (MODULE, "other", "loss"),
    "an error": ("1 / 0", "a", "loss"),
    "a missing package": ("import no_such_package", "a", "loss"),
    "a name of credit_jax": (MODULE + "mse = my_loss", "mse", "loss"),
    "a name of a sub package": (MODULE + "gefs = my_source", "gefs", "dataset"),
    "a type": (MODULE, "my_loss", "scheduler"),
}
# Without torch or CREDIT their classes cannot be imported, which is another error.
INSTALLED = {
    "a class of torch": pytest.mark.torch,
    "an object of torch": pytest.mark.torch,
    "a class of CREDIT": pytest.mark.reference,
}


def registered(refused, module):
    text, name, kind = REFUSED[refused]
    register_objects(section(module("refused", text), **{name: kind}))


for _name in REFUSED:
    CASES.rows(registered, _name, marks=INSTALLED.get(_name, ()))


CASES.rows(
    lambda place: register_objects(section(place, a="loss")),
    *("none.py", "no_package.losses", "credit_jax.no_losses"),
    name="objects of",
)


@CASES.case
def one_name_from_two_files(module):
    register_objects(section(module("one"), my_loss="loss"))
    register_objects(section(module("two"), my_loss="loss"))


def of_a_package(by, module, tmp_path):
    path = module("inside")
    wanted = section(path if by == "file" else "inside", my_loss="loss")
    register_objects(wanted, package=tmp_path)


CASES.rows(of_a_package, "file", "module", name="a package that runs a")
