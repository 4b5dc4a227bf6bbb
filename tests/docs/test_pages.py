"""Pages of docs/: their commands, code, names, keys and numbers are right."""

import argparse
import contextlib
import functools
import importlib
import importlib.util
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import yaml

import credit_jax
from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.cli.console import all_commands, main
from credit_jax.config import ConfigError, load_config
from credit_jax.config.custom_objects import register_objects
from credit_jax.evaluation.regions import REGIONS
from credit_jax.evaluation.scores import METRICS, PAGE_NAME, write_scores
from credit_jax.extensions.assimilation.operators import operators_of
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.plan import plan_run
from credit_jax.training.optimizer import adamw
from credit_jax.training.restore import RunStore
from credit_jax.training.state import init_state
from tests.config.example import example
from tests.data.world import MODEL, TIMES
from tests.evaluation.test_scores import some_scores
from tests.extensions.assimilation.windows import GRID_OF_RUN, START, STEP, drawn
from tests.models.cases import BASE, section
from tests.support import make_mesh
from tests.support.code_blocks import code_blocks
from tests.test_init import folder
from tests.training.conftest import compiled_once, tiny_model, world
from tools import upstream
from tools.key_pages import PAGE as KEYS_PAGE

__all__ = ["compiled_once", "folder", "tiny_model", "world"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOPS = "credit_jax|credit_torch_bridge|tests|docs|benchmarks|configs|tools"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted(DOCS.glob("*.md")),
]
COMMANDS = all_commands()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = {*PROJECT["optional-dependencies"]}


def run_blocks(page: str) -> dict[str, Any]:
    """Runs the blocks of Python of a page in order; returns their names."""
    names: dict[str, Any] = {}
    for block in code_blocks((DOCS / page).read_text(), "python"):
        exec(compile(block, page, "exec"), names)
    return names


# What every page names exists, and its commands parse.


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_modules_and_lines(page):
    """Names of the form tests/test_<name>.py and credit_jax/a/b.py are placeholders."""
    text = page.read_text()
    files = re.findall(rf"(?<![\w/])((?:{TOPS})/[\w/.-]*\w\b/?)(?!<)", text)
    missing = [f for f in {*files} if "/a/" not in f and not (ROOT / f).exists()]
    modules = re.findall(rf"python -m ((?:{TOPS})[\w.]*)", text)
    missing += [name for name in {*modules} if importlib.util.find_spec(name) is None]
    assert not missing, missing
    imports = rf"^from ((?:{TOPS})[\w.]*) import (\([^)]*|.*)"
    for module, names in re.findall(imports, text, re.MULTILINE):
        for name in re.findall(r"\w+", names):
            resolve(f"{module}.{name}")
    # 120 characters, rows of tables too; code and what is made have their own.
    skipped = r"^```.*?^```$|^<!-- made by:.*?^<!-- the end of what is made -->$"
    text = re.sub(skipped, "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    assert [line for line in lines if len(line) > 120] == []


CALLS = [
    call
    for page in PAGES
    for call in re.findall(
        r"^    (?:\S*bin/)?credit-jax +(\w.*)$",
        page.read_text().replace("\\\n", " "),
        re.MULTILINE,
    )
]


@pytest.mark.parametrize("call", sorted({*CALLS}))
def test_every_call_of_a_command_parses(call):
    """Of a synopsis, with options in brackets, the command alone."""
    name, *words = shlex.split(call, comments=True)
    parser = argparse.ArgumentParser(exit_on_error=False)
    COMMANDS[name].load().fill(parser)
    if not re.search(r"\[|\||\.\.\.", call):
        parser.parse_args(words)


def test_every_command_has_a_row():
    text = (DOCS / "commands.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)`", text, re.MULTILINE)
    assert sorted(rows) == sorted(COMMANDS)


def test_the_page_of_keys_is_what_the_classes_say():
    """If not: `python -m tools.key_pages`."""
    code = "from tools.key_pages import keys_page; print(keys_page(), end='')"
    # In a process of its own: other tests register objects of configs of theirs.
    command = [sys.executable, "-c", code]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    text = KEYS_PAGE.read_text(encoding="utf-8")
    assert text == made.stdout
    for line in (
        *("## trainer.scheduler (plateau)", "### bridgescaler_transform", "### gefs"),
        *("| `epochs` | integer |", "### almost-fair-crps", "### wxformer"),
    ):
        assert line in text


# docs/architecture.md, and what a contract does not check.


def test_the_page_has_the_layers_of_the_contract():
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    (contract,) = (c for c in contracts if c.get("containers") == ["credit_jax"])
    names = [{*re.findall("[a-z_]+", layer)} for layer in contract["layers"]]
    block = (DOCS / "architecture.md").read_text().split("    ------")[1]
    layers: list[set[str]] = []
    for line in block.split("\n\n")[0].splitlines()[1:]:
        if line[4] != " ":  # not the rest of the layer above
            layers.append(set())
        layers[-1].update(re.findall("[a-z_]+", line[:32]))
    assert layers == [layer for n in names if (layer := n - {"main", "__main__"})]


def test_families_of_models_never_import_one_another():
    """As docs/adding_a_model.md states; a contract would have to name every family."""
    each = [path.parent for path in ROOT.glob("credit_jax/models/*/__init__.py")]
    families = {family.name for family in each} - {"common", "diffusion"}
    assert families, "there are models"
    for family in each:
        text = "".join(path.read_text() for path in family.rglob("*.py"))
        seen = set(re.findall(r"credit_jax\.models\.(\w+)", text)) & families
        assert seen <= {family.name}, f"{family.name} imports {seen}"


# docs/coming_from.md lists all names and parameters of five interfaces; ours exist.


COMING_FROM = (DOCS / "coming_from.md").read_text()
OURS = r"`((?:credit_jax|credit_torch_bridge)\.[\w.]+(?:\(\w+\))?)`"
# Interface -> name -> parameters, as their documentation has them.
INTERFACES = json.loads(Path(__file__).with_name("interfaces.json").read_text())


def resolve(dotted: str) -> Any:
    """Returns what a dotted name, perhaps with "(parameter)" behind it, means."""
    dotted, _, parameter = dotted.rstrip(")").partition("(")
    if parameter:
        return inspect.signature(resolve(dotted)).parameters[parameter]
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            thing: Any = importlib.import_module(".".join(parts[:end]))
            for name in parts[end:]:
                fields = getattr(thing, "__dataclass_fields__", {})
                thing = fields.get(name) or getattr(thing, name)
            return thing
    raise ModuleNotFoundError(dotted)


def test_our_names_can_be_imported_and_wrong_ones_are_noticed():
    for name in re.findall(OURS, COMING_FROM):
        resolve(name)
    for wrong in ("rows.exchange.fetsh", "mesh.dims.ParallelDims.dq"):
        with pytest.raises(AttributeError):
            resolve(f"credit_jax.parallel.{wrong}")
    with pytest.raises(KeyError):
        resolve("credit_jax.parallel.placement.shard_tensor(manager)")


@pytest.mark.parametrize("section", INTERFACES)
def test_every_name_and_parameter_has_one_entry_that_says_where_or_why(section):
    text = COMING_FROM.split(f"## `{section}`")[1].split("\n## ")[0]
    lines = re.sub(r"\n  +", " ", text).splitlines()
    shape = r"- ((?:`[^`]+`(?:, )?)+): (automatic|not needed|`[^`]+`)(?:; (.*))?"
    entries = [re.fullmatch(shape, line) for line in lines if line.startswith("- ")]
    assert all(entries), f"{section}: an entry is not `theirs`: here; why"
    theirs = [n for entry in entries for n in re.findall("`(.+?)`", entry[1])]
    named = INTERFACES[section].items()
    parameters = [f"{name}({p})" for name, each in named for p in each]
    assert sorted(theirs) == sorted([*INTERFACES[section], *parameters])
    for _, here, why in (entry.groups(default="") for entry in entries):
        assert re.fullmatch(OURS, here) or why, f"{here} needs a reason"
        assert here != "automatic" or "`tests/" in why, f"which test proves {here}?"


def test_no_entry_waits():
    """Each feature is implemented, or rejected with a reason."""
    for words in ("without effect", "not yet"):
        assert [line for line in COMING_FROM.splitlines() if words in line] == []


# The Dockerfile and the extras that pages, messages and commands name.


def test_the_image_copies_and_installs_what_there_is():
    text = (ROOT / "Dockerfile").read_text()
    lines = re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)
    copied = {name for line in lines for name in line.split()}
    ignore = (ROOT / ".dockerignore").read_text().split()
    assert ignore[0] == "*"
    assert copied == {line[1:] for line in ignore if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {*packages, "constraints.txt", "pyproject.toml", PROJECT["readme"]}
    assert needed | {*PROJECT["license-files"]} <= copied
    (python,) = re.findall(r"^FROM python:(\d+)\.(\d+)-slim$", text, re.MULTILINE)
    assert PROJECT["requires-python"] == ">=3.11"
    assert tuple(map(int, python)) >= (3, 11)
    extras = ",".join(re.findall(r"EXTRAS=([\w,]+)", text)).split(",")
    assert {"cloud", "cuda"} <= {*extras} <= EXTRAS
    (entry,) = re.findall(r'^ENTRYPOINT \["(.+)"\]$', text, re.MULTILINE)
    assert entry in PROJECT["scripts"]


def test_extras_that_are_named():
    assert {"cuda", "tpu", "cloud", "wandb"} <= EXTRAS
    files = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *ROOT.glob("credit_*/**/*.py")]
    text = "".join(path.read_text() for path in files)
    named = re.findall(r"(?:credit-jax|'\.|`)\[([a-z,]+)\]['`]", text)
    assert len(named) > 10
    assert {*",".join(named).split(",")} <= EXTRAS
    assert {entry.extra for entry in COMMANDS.values()} <= {"", *EXTRAS}


# Pages whose code runs.


def test_the_operator_of_assimilation(tmp_path):
    """It is found by its name, and takes the mean at the nearest point and step."""
    (code,) = code_blocks((DOCS / "assimilation.md").read_text(), "python")
    (tmp_path / "mine.py").write_text(code)
    keys = {"object_type": "operator", "module_path": str(tmp_path / "mine.py")}
    register_objects({"custom_objects": {"thickness": keys}})
    operator = operators_of({"DZ": "thickness"}, GRID_OF_RUN)["DZ"]
    table = drawn(3).assign(
        time=START + STEP * np.array([0, 2, 3]),
        latitude=[75.0, 50.0, -75.0],
        longitude=[-1.0, 37.0, 330.0],
    )
    field = np.random.default_rng(0).random((4, 2, 6, 10)).astype(np.float32)
    trajectory = {"demo/prognostic/3d/T": jnp.asarray(field)}
    actual = operator(operator.prepare(table, GRID_OF_RUN), trajectory)
    points = [(0, 0, 0), (2, 1, 1), (3, 5, 9)]
    expected = [field[t, :, row, column].mean() for t, row, column in points]
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.slow
def test_the_certificate_of_a_model_of_ones_own(tmp_path, monkeypatch, capsys):
    codes = code_blocks((DOCS / "adding_a_model.md").read_text(), "python")
    code = "\n".join(code for code in codes if "@register_model" not in code)
    # With few channels, as the page says.
    small = re.sub(r"(channels|dim|levels): (PositiveInt) = \d+", r"\1: \2 = 8", code)
    (tmp_path / "resnet.py").write_text(small)
    monkeypatch.syspath_prepend(tmp_path)
    certify = functools.partial(credit_jax.certify_model, meshes=["tp2xdomain3"])
    monkeypatch.setattr(credit_jax, "certify_model", certify, raising=False)
    run_blocks("certificate.md")
    assert "tp2xdomain3              the same: " in capsys.readouterr().out


@pytest.fixture
def data_page(tmp_path, monkeypatch):
    """Writes the files of docs/data.md; returns a function that plans a run of them."""
    monkeypatch.chdir(tmp_path)
    page, times = (DOCS / "data.md").read_text(), TIMES[:8]
    (code,) = (c for c in code_blocks(page, "python") if "SourceEntry" in c)
    (text,) = (c for c in code_blocks(page, "yaml") if "my_source" in c)
    sections = yaml.safe_load(text)
    Path("my_source.py").write_text(code)
    Path("arrays").mkdir()
    for number, time in enumerate(times):
        for offset, name in enumerate("TU"):
            array = np.arange(60.0).reshape(6, 10) + 100 * number + 0.5 * offset
            np.save(f"arrays/{name}_{time:%Y%m%d%H}.npy", array)
    counts = {"channels": 0, "surface_channels": 2, "input_only_channels": 0}
    mapping = example(
        custom_objects=sections["custom_objects"],
        data__source=sections["data"]["source"],
        data__start_datetime=str(times[0]),
        data__end_datetime=str(times[-1]),
        model={**MODEL, **counts, "type": "debugger", "output_only_channels": 0},
        preblocks={"per_step": {"concat": {"type": "concat"}}},
        trainer__skip_validation=True,
    )
    Path("my.yml").write_text(yaml.safe_dump(mapping))
    return lambda: plan_run(load_config("my.yml"), num_devices=1)


def test_a_source_of_ones_own_is_read_and_checked(data_page):
    batch = next(data_page().loaders["train"].epoch(0))
    values = batch.x[:, :, 0, 0, 0]
    assert values.shape == (2, 2)
    # The number of the time, and that of the variable.
    np.testing.assert_array_equal(values[:, 0] % 100, 0)
    np.testing.assert_array_equal(values[:, 1] - values[:, 0], 0.5)
    np.testing.assert_array_equal(batch.y[:, :, 0] - batch.x[:, :, 0], 100.0)
    path = f"arrays/U_{TIMES[3]:%Y%m%d%H}.npy"
    Path(path).unlink()
    with pytest.raises(ConfigError, match=f"no file {path}"):
        data_page()


LIBRARY_MODEL = section(BASE, (32, 32), depth=[0, 1, 0, 0], padding_conf=None)
VARIABLES = {
    "prognostic": {"vars_3D": ["U", "T"], "vars_2D": ["SP"]},
    "static": {"vars_2D": ["LSM", "Z"]},
    "diagnostic": {"vars_2D": ["TP"]},
}


@pytest.mark.slow
def test_library_runs(credit, torch, tmp_path, monkeypatch):
    """From a checkpoint of a CREDIT model as CREDIT writes it."""
    from credit_torch_bridge.compare.credit_side import new_credit_model

    torch.manual_seed(0)
    variables = {kind: v | {"path": "era5_%Y.nc"} for kind, v in VARIABLES.items()}
    source = {"dataset_type": "local", "levels": [500, 850], "level_coord": "level"}
    data = {"start_datetime": "2000-01-01", "end_datetime": "2001-01-01"}
    data |= {"timestep": "6h", "forecast_len": 1}
    data |= {"source": {"ERA5": source | {"variables": variables}}}
    config = yaml.safe_dump({"model": LIBRARY_MODEL, "data": data})
    (tmp_path / "model.yml").write_text(config)
    state = new_credit_model(LIBRARY_MODEL).state_dict()
    torch.save({"model_state_dict": state}, tmp_path / "checkpoint.pt")
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "library.md").read_text()
    (command,) = re.findall(r"^    credit-jax (.+)$", text, re.MULTILINE)
    assert main(shlex.split(command)) == 0
    names = run_blocks("library.md")
    assert names["names"] == ["U 500", "U 850", "T 500", "T 850", "SP", "TP"]
    assert {"forecast", "sensitivity", "curvature", "info", "small"} <= set(names)


@pytest.mark.slow
def test_parameters_runs(tmp_path, monkeypatch):
    run = tmp_path / "RUN"
    run.mkdir()
    (run / "model.yml").write_text(yaml.safe_dump({"model": LIBRARY_MODEL}))
    model = build_parallel_model(LIBRARY_MODEL, make_mesh())
    state = init_state(model, adamw(), jax.random.key(0))
    with contextlib.closing(CheckpointStore(run)) as store:
        RunStore(store, model.model_def.param_specs).save(1, state, Progress())
    monkeypatch.chdir(tmp_path)
    assert {"moved", "changed", "forecast"} <= run_blocks("parameters.md").keys()


@pytest.mark.slow
def test_notebook_runs(folder, tiny_model, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    names = run_blocks("notebook.md")
    plt.close("all")
    forecast, era5 = names["forecast"], names["era5"]
    assert forecast["T"].dims == ("time", "level", "latitude", "longitude")
    assert forecast.sizes["time"] == 4
    assert names["ensemble"].sizes["number"] == 3
    ours = (forecast["SP"][0] - era5["SP"].sel(time=forecast.time[0])).values
    weights = np.cos(np.deg2rad(era5.latitude.values))[:, None]
    mean = (ours**2 * weights).sum() / (weights * np.ones_like(ours)).sum()
    np.testing.assert_allclose(names["rmse"][0], np.sqrt(mean), rtol=1e-5)
    assert names["spread"] > 0
    assert (folder / "error.png").stat().st_size > 0
    assert "2000-01-01 06:00:00" in capsys.readouterr().out


def test_scoring_runs(tmp_path, monkeypatch, capsys):
    scores = some_scores().assign_coords(system=["forecast", "climatology"])
    write_scores(scores, tmp_path / "report")
    monkeypatch.chdir(tmp_path)
    run_blocks("scoring.md")
    assert "prediction_timedelta" in capsys.readouterr().out
    text = (DOCS / "scoring.md").read_text()
    for name in [*METRICS, *(region.name for region in REGIONS)]:
        assert f"`{name}`" in text, name


def test_pages_are_short_and_pictures_small():
    for page, most in ("library", 120), ("scoring", 100):
        assert len((DOCS / f"{page}.md").read_text().splitlines()) < most
    blocks = code_blocks((DOCS / "notebook.md").read_text(), "python")
    assert sum(len(block.splitlines()) for block in blocks) <= 40
    text = (DOCS / "plotting.md").read_text()
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (DOCS / picture).stat().st_size < 300_000
    assert PAGE_NAME in text


# docs/upstream.md holds the output of tools/upstream.py for the tests' CREDIT.


def checkout() -> Path:
    """The folder that has CREDIT's package; nothing of it is imported."""
    found: Any = importlib.util.find_spec("credit")
    return Path(found.submodule_search_locations[0]).parent


@pytest.mark.reference
def test_the_page_holds_the_output():
    page = (DOCS / "upstream.md").read_text()
    made = re.search(r"CHECKOUT_OF_CREDIT -->\n(.*)\n<!-- the end", page, re.DOTALL)
    assert made is not None
    assert made[1].splitlines() == upstream.report(checkout())
    explained = {*re.findall("`(.+?)`", page[made.end() :])}
    explained |= {"trainer", "data", "crossformer-diffusion", "unet-diffusion", "swin"}
    assert {*re.findall("`(.+?)`", made[1])} <= explained, "no reason"


# What is reported of a model, an argument, a default, a key and a command that are new:
# file, old text, new text.
NEWER = {
    "- model: `newest`": (
        *("models/__init__.py", "_MODEL_REGISTRY = {"),
        '_MODEL_REGISTRY = {\n    "newest": ("a.b", "C", "d"),',
    ),
    "- postblock `square_transform`: `newkey`": (
        *("postblock/square.py", "def __init__(self, ", "def __init__(self, newkey, "),
    ),
    "- model `unet-diffusion`: `frames` is 3, here 1": (
        *("models/unet_diffusion.py", "frames: int = 2", "frames: int = 3"),
    ),
    "- `trainer`: `new_key`": (
        *("trainers/utils.py", "\n\n\n"),
        "\n\n\ndef new(conf):\n    return conf['trainer'].get('new_key')\n\n\n",
    ),
    "- `fly`, `ask`": (
        *("cli/_parser.py", 'p = sub.add_parser("train"'),
        'p = sub.add_parser("fly")\n    p = sub.add_parser("train"',
    ),
}


@pytest.fixture
def newer(tmp_path):
    """A copy of CREDIT's sources."""
    other = shutil.ignore_patterns("*.[!p]*")
    shutil.copytree(checkout() / "credit", tmp_path / "credit", ignore=other)
    return tmp_path


@pytest.mark.slow
@pytest.mark.reference
def test_state_dicts_of_a_newer_version(newer):
    path = newer / "credit/models/fuxi.py"
    path.write_text(path.read_text().replace("self.cube_embedding", "self.cube"))
    (line,) = upstream._state_dicts(newer)
    assert line.startswith("- model `fuxi`: ")
    assert "missing: cube_embedding.proj.weight" in line


@pytest.mark.reference
def test_what_a_newer_version_adds(newer, tmp_path, monkeypatch):
    monkeypatch.setattr(upstream, "_state_dicts", lambda checkout: [])

    def git(*words):
        person = "-c", "user.name=a", "-c", "user.email=a@b.c"
        subprocess.run(["git", "-C", str(tmp_path), *person, *words], check=True)

    git("init", "-q", "-b", "main")
    git("add", "credit")
    git("commit", "-q", "-m", "first")
    git("switch", "-q", "-c", "newer")
    for name, old, new in NEWER.values():
        path = tmp_path / "credit" / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
    lines = set(upstream.report(tmp_path)) - set(upstream.report(checkout()))
    assert lines == {*NEWER}
    git("commit", "-q", "-a", "-m", "second")
    git("switch", "-q", "main")
    first, *added = upstream.branches(tmp_path)
    assert first == "- refs/heads/newer:"
    assert {line.removeprefix("  ") for line in added} == lines


def test_no_checkout(tmp_path, monkeypatch, capsys):
    """A line, not a traceback."""
    monkeypatch.setattr("sys.argv", ["upstream.py", str(tmp_path)])
    with pytest.raises(SystemExit):
        upstream.main()
    assert "has no package credit; give a checkout" in capsys.readouterr().err
