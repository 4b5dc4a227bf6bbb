"""Pages of docs/: their commands, keys and numbers are right."""

import argparse
import dataclasses
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
from credit_jax.cli.commands import OK
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
from tests.forecast.tiny_run import make_run
from tests.models.cases import BASE, section
from tests.support import make_mesh
from tests.support.code_blocks import code_blocks
from tests.support.custom_objects import no_objects_left
from tests.training.conftest import compiled_once, tiny_model, world
from tools.key_pages import PAGE as KEYS_PAGE

__all__ = ["compiled_once", "no_objects_left", "tiny_model", "world"]


ROOT = Path(__file__).parents[2]
MODELS = ROOT / "credit_jax/models"
# What families of models share.
SHARED = {"common", "diffusion"}
NAME = r"[a-z_]+"
# Columns of the block of layers where names and descriptions begin.
INDENT, DESCRIPTION = 4, 32


def contract() -> list[set[str]]:
    """The layers of the contract, from the top."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (layers,) = (
        found["layers"]
        for found in contracts
        if found.get("containers") == ["credit_jax"]
    )
    return [set(re.findall(NAME, layer)) - {"__main__"} for layer in layers]


def page() -> list[set[str]]:
    """The layers below the line of the first block of the page, from the top."""
    block = (ROOT / "docs/architecture.md").read_text().split("    ------")[1]
    layers: list[set[str]] = []
    for line in block.split("\n\n")[0].splitlines()[1:]:
        if line[INDENT] != " ":  # not the rest of the layer above
            layers.append(set())
        layers[-1].update(re.findall(NAME, line[:DESCRIPTION]))
    return layers


def test_the_page_has_the_layers_of_the_contract():
    assert page() == [layer for layer in contract() if layer]


def test_families_of_models_never_import_one_another():
    """As docs/adding_a_model.md states; a contract would have to name every family."""
    folders = [path.parent for path in MODELS.glob("*/__init__.py")]
    families = {folder.name for folder in folders} - SHARED
    assert families, "there are models"
    for folder in folders:
        text = "".join(path.read_text() for path in folder.rglob("*.py"))
        seen = set(re.findall(r"credit_jax\.models\.(\w+)", text)) & families
        assert seen <= {folder.name}, f"{folder.name} imports {seen}"


# The observation operator of docs/assimilation.md.


ASSIMILATION = Path(__file__).parents[2] / "docs/assimilation.md"


@pytest.mark.usefixtures("no_objects_left")
def test_the_operator_of_the_page(tmp_path):
    """It is found by its name, and takes the mean at the nearest point and step."""
    (code,) = code_blocks(ASSIMILATION.read_text(), "python")
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
    places = [(0, 0, 0), (2, 1, 1), (3, 5, 9)]
    expected = [field[t, :, row, column].mean() for t, row, column in places]
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


# docs/certificate.md: its block runs, with the model of docs/adding_a_model.md.


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_a_model_of_ones_own(tmp_path, monkeypatch, capsys):
    codes = code_blocks((DOCS / "adding_a_model.md").read_text(), "python")
    code = "\n".join(code for code in codes if "@register_model" not in code)
    # With few channels, as the page says.
    small = re.sub(r"(channels|dim|levels): (PositiveInt) = \d+", r"\1: \2 = 8", code)
    (tmp_path / "resnet.py").write_text(small)
    monkeypatch.syspath_prepend(tmp_path)
    certify = functools.partial(credit_jax.certify_model, meshes=["tp2xdomain3"])
    monkeypatch.setattr(credit_jax, "certify_model", certify, raising=False)
    (block,) = code_blocks((DOCS / "certificate.md").read_text(), "python")
    exec(compile(block, "certificate.md", "exec"), {})
    assert "tp2xdomain3              the same: " in capsys.readouterr().out


# docs/coming_from.md lists all names and parameters of five interfaces; ours exist.


PAGE_COMING_FROM = (ROOT / "docs/coming_from.md").read_text()
WORDS = ("automatic", "not needed")
OURS = r"`((?:credit_jax|credit_torch_bridge)\.[\w.]+(?:\(\w+\))?)`"
DOTTED = sorted(set(re.findall(OURS, PAGE_COMING_FROM)))


# Interface -> name -> parameters, as their documentation has them.
INTERFACES = json.loads(Path(__file__).with_name("interfaces.json").read_text())


def names_of(section: str) -> list[str]:
    """Returns the names of an interface, and "name(parameter)" for each parameter."""
    named = INTERFACES[section].items()
    return [*INTERFACES[section], *(f"{n}({p})" for n, own in named for p in own)]


def entries(section: str) -> list[tuple[str, str, str]]:
    """Returns theirs, here and the reason of each entry of the list below a heading."""
    text = PAGE_COMING_FROM.split(f"## `{section}`")[1].split("\n## ")[0]
    lines = re.sub(r"\n  +", " ", text).splitlines()
    shape = r"- ((?:`[^`]+`(?:, )?)+): (automatic|not needed|`[^`]+`)(?:; (.*))?"
    parsed = [re.fullmatch(shape, line) for line in lines if line.startswith("- ")]
    assert all(parsed), f"{section}: an entry is not `theirs`: here; why"
    return [(match[1], match[2], match[3] or "") for match in parsed if match]


def resolve(dotted: str) -> Any:
    """Returns what a dotted name, perhaps with "(parameter)" behind it, means."""
    dotted, _, parameter = dotted.rstrip(")").partition("(")
    if parameter:
        return inspect.signature(resolve(dotted)).parameters[parameter]
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            fields = dataclasses.is_dataclass(found) and {
                field.name: field for field in dataclasses.fields(found)
            }
            found = (fields or {}).get(name) or getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


@pytest.mark.parametrize("dotted", DOTTED)
def test_our_names_can_be_imported(dotted):
    resolve(dotted)


def test_a_wrong_name_is_noticed():
    with pytest.raises(AttributeError):
        resolve("credit_jax.parallel.rows.exchange.fetsh")
    with pytest.raises(AttributeError):
        resolve("credit_jax.parallel.mesh.dims.ParallelDims.dq")
    with pytest.raises(KeyError):
        resolve("credit_jax.parallel.placement.shard_tensor(manager)")


@pytest.mark.parametrize("section", INTERFACES)
def test_every_name_and_parameter_has_one_entry(section):
    found = [n for names, *_ in entries(section) for n in re.findall("`(.+?)`", names)]
    assert sorted(found) == sorted(names_of(section))


@pytest.mark.parametrize("section", INTERFACES)
def test_every_entry_says_where_or_why(section):
    for theirs, here, why in entries(section):
        named = re.fullmatch(OURS, here)
        assert named or here in WORDS, f"{theirs}: {here!r} is none of {WORDS}"
        if here in ("automatic", "not needed"):
            assert why, f"{theirs} is {here}, but the reason is missing"
        if here == "automatic":
            assert "`tests/" in why, f"{theirs} is automatic; which test proves it?"


def test_no_entry_waits():
    """Each feature is implemented, or rejected with a reason."""
    found = [line for line in PAGE_COMING_FROM.splitlines() if "without effect" in line]
    found += [line for line in PAGE_COMING_FROM.splitlines() if "not yet" in line]
    assert not found, found


def test_the_tests_that_are_named_exist():
    named = set(re.findall(r"`(tests/[\w/.]+)`", PAGE_COMING_FROM))
    missing = sorted(path for path in named if not (ROOT / path).exists())
    assert not missing, missing


# docs/data.md: the source of a user's own that it shows is read and checked.


PAGE_DATA = Path(__file__).parents[2] / "docs/data.md"
TIME_RANGE = slice(0, 8)


@pytest.fixture
def data_page(tmp_path, monkeypatch, no_objects_left):
    """Writes the files of the page and its arrays; returns the sections of its YAML."""
    monkeypatch.chdir(tmp_path)
    (code,) = (text for text in blocks("python") if "SourceEntry" in text)
    (text,) = (text for text in blocks("yaml") if "my_source" in text)
    Path("my_source.py").write_text(code)
    Path("arrays").mkdir()
    for number, time in enumerate(TIMES[TIME_RANGE]):
        for offset, name in enumerate("TU"):
            array = np.arange(60.0).reshape(6, 10) + 100 * number + 0.5 * offset
            np.save(f"arrays/{name}_{time:%Y%m%d%H}.npy", array)
    return yaml.safe_load(text)


def blocks(language):
    """The code of every block of the page in a language."""
    return code_blocks(PAGE_DATA.read_text(), language)


def planned(sections, **changes):
    """The plan of a config with the source of the page."""
    first, last = (str(TIMES[TIME_RANGE][place]) for place in (0, -1))
    counts = {"channels": 0, "surface_channels": 2, "input_only_channels": 0}
    mapping = example(
        custom_objects=sections["custom_objects"],
        data__source=sections["data"]["source"],
        data__start_datetime=first,
        data__end_datetime=last,
        model={**MODEL, **counts, "type": "debugger", "output_only_channels": 0},
        preblocks={"per_step": {"concat": {"type": "concat"}}},
        trainer__skip_validation=True,
        **changes,
    )
    Path("my.yml").write_text(yaml.safe_dump(mapping))
    return plan_run(load_config("my.yml"), num_devices=1)


def test_its_source_is_read(data_page):
    plan = planned(data_page)
    batch = next(plan.loaders["train"].epoch(0))
    values = batch.x[:, :, 0, 0, 0]
    assert values.shape == (2, 2)
    # The number of the time, and that of the variable.
    numbers = values[:, 0] / 100
    np.testing.assert_array_equal(numbers, numbers.astype(int))
    np.testing.assert_array_equal(values[:, 1] - values[:, 0], 0.5)
    np.testing.assert_array_equal(batch.y[:, :, 0] - batch.x[:, :, 0], 100.0)


def test_a_file_that_is_missing_is_a_problem(data_page):
    path = f"arrays/U_{TIMES[3]:%Y%m%d%H}.npy"
    Path(path).unlink()
    with pytest.raises(ConfigError, match=f"no file {path}"):
        planned(data_page)


# The Dockerfile and the extras that pages, messages and commands name.


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {*PROJECT["optional-dependencies"]}
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_what_the_image_copies_is_there_and_not_ignored():
    lines = re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {name for line in lines for name in line.split()}
    ignore = (ROOT / ".dockerignore").read_text().split()
    assert ignore[0] == "*"
    assert copied == {line[1:] for line in ignore if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = wheel["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {*packages, "constraints.txt", "pyproject.toml"}
    assert needed | {PROJECT["readme"], *PROJECT["license-files"]} <= copied


def test_the_image_installs_what_there_is():
    (python,) = re.findall(r"^FROM python:(\d+)\.(\d+)-slim$", DOCKERFILE, re.M)
    assert PROJECT["requires-python"] == ">=3.11"
    assert tuple(map(int, python)) >= (3, 11)
    named = re.findall(r"EXTRAS=([\w,]+)", DOCKERFILE)
    assert {"cloud", "cuda"} <= {name for own in named for name in own.split(",")}
    assert {name for own in named for name in own.split(",")} <= EXTRAS
    (entry,) = re.findall(r'^ENTRYPOINT \["(.+)"\]$', DOCKERFILE, re.MULTILINE)
    assert entry in PROJECT["scripts"]


def test_extras_that_are_named():
    assert {"cuda", "tpu", "cloud", "wandb"} <= EXTRAS
    texts = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("credit_*/**/*.py"),
    ]
    found = {
        (path.name, name)
        for path in texts
        for own in re.findall(
            r"(?:credit-jax|'\.|`)\[([a-z,]+)\]['`]", path.read_text()
        )
        for name in own.split(",")
    }
    assert len(found) > 10
    assert {own for own in found if own[1] not in EXTRAS} == set()
    commands = {entry.extra for entry in all_commands().values()}
    assert commands - {""} <= EXTRAS


# The page of the keys of the YAML.


_PRINT = "from tools.key_pages import keys_page; print(keys_page(), end='')"


def test_it_is_what_the_classes_say():
    """If not: `python -m tools.key_pages`."""
    # In a process of its own: other tests register objects of configs of theirs.
    command = [sys.executable, "-c", _PRINT]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    text = KEYS_PAGE.read_text(encoding="utf-8")
    assert text == made.stdout
    for line in (
        "## trainer.scheduler (plateau)",
        "### bridgescaler_transform",
        "| `epochs` | integer |",
        "### almost-fair-crps",
        "### wxformer",
        "### gefs",
    ):
        assert line in text


# docs/library.md: its commands and its blocks run, in order.


PAGE_LIBRARY = DOCS / "library.md"
MODEL_LIBRARY = section(BASE, (32, 32), depth=[0, 1, 0, 0], padding_conf=None)


VARIABLES = {
    "prognostic": {"vars_3D": ["U", "T"], "vars_2D": ["SP"]},
    "static": {"vars_2D": ["LSM", "Z"]},
    "diagnostic": {"vars_2D": ["TP"]},
}
SOURCE = {"dataset_type": "local", "levels": [500, 850], "level_coord": "level"}
DATA = {"start_datetime": "2000-01-01", "end_datetime": "2001-01-01"}
DATA |= {"timestep": "6h", "forecast_len": 1}
for field in VARIABLES.values():
    field["path"] = "era5_%Y.nc"


def library_blocks(page: Path = PAGE_LIBRARY) -> list[tuple[int, str]]:
    """Returns (first line number, code) of every block of Python."""
    text = page.read_text()
    found = re.finditer(r"```python\n(.*?)```", text, re.DOTALL)
    return [(text[: m.start(1)].count("\n"), m[1]) for m in found]


def commands() -> list[list[str]]:
    """Returns the arguments of every command, without the program."""
    found = re.findall(r"^    credit-jax (.+)$", PAGE_LIBRARY.read_text(), re.MULTILINE)
    return [shlex.split(command) for command in found]


def write_checkpoint(folder: Path) -> None:
    """Writes a checkpoint of a CREDIT model as CREDIT does."""
    import torch

    from credit_torch_bridge.compare.credit_side import new_credit_model

    torch.manual_seed(0)
    data = DATA | {"source": {"ERA5": SOURCE | {"variables": VARIABLES}}}
    (folder / "model.yml").write_text(
        yaml.safe_dump({"model": MODEL_LIBRARY, "data": data})
    )
    state = new_credit_model(MODEL_LIBRARY).state_dict()
    torch.save({"model_state_dict": state}, folder / "checkpoint.pt")


def test_the_page_is_short():
    assert len(PAGE_LIBRARY.read_text().splitlines()) < 120


@pytest.mark.slow
def test_the_page_runs(credit, tmp_path, monkeypatch):
    write_checkpoint(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert [main(command) for command in commands()] == [0]
    names: dict[str, object] = {}
    for line, code in library_blocks():
        exec(compile("\n" * line + code, str(PAGE_LIBRARY), "exec"), names)
    assert names["names"] == ["U 500", "U 850", "T 500", "T 850", "SP", "TP"]
    assert {"forecast", "sensitivity", "curvature", "info", "small"} <= set(names)


# docs/notebook.md: its blocks run in order, and are few.


PAGE_NOTEBOOK = Path(__file__).parents[2] / "docs/notebook.md"
BLOCKS = code_blocks(PAGE_NOTEBOOK.read_text(), "python")


@pytest.fixture
def folder(world, tmp_path, tiny_model, monkeypatch):
    """The working directory of the page, with its run and its data."""
    config = make_run(world, tmp_path / "tiny")
    shutil.copytree(tmp_path / "tiny/run", tmp_path / "RUN")
    shutil.copyfile(config, tmp_path / "RUN/model.yml")
    shutil.copyfile(world / "w_2000.nc", tmp_path / "era5.nc")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    plt.close("all")


def test_the_page_has_at_most_forty_lines_of_code():
    assert sum(len(block.splitlines()) for block in BLOCKS) <= 40


@pytest.mark.slow
def test_the_page_runs_notebook(folder, capsys):
    names = {}
    for block in BLOCKS:
        exec(compile(block, str(PAGE_NOTEBOOK), "exec"), names)
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


# docs/parameters.md: its blocks run, in order.


@pytest.mark.slow
def test_the_page_runs_parameters(tmp_path, monkeypatch):
    folder = tmp_path / "RUN"
    folder.mkdir()
    (folder / "model.yml").write_text(yaml.safe_dump({"model": MODEL_LIBRARY}))
    model = build_parallel_model(MODEL_LIBRARY, make_mesh())
    state = init_state(model, adamw(), jax.random.key(0))
    store = CheckpointStore(folder)
    RunStore(store, model.model_def.param_specs).save(1, state, Progress())
    store.close()
    monkeypatch.chdir(tmp_path)
    page, names = DOCS / "parameters.md", {}
    for line, code in library_blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), names)
    assert {"moved", "changed", "forecast"} <= set(names)


# Every file, module and command that a page names exists.


TOPS = "credit_jax|credit_torch_bridge|tests|docs|benchmarks|configs|tools"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
COMMANDS = all_commands()
COMMANDS_PAGE = ROOT / "docs/commands.md"


def named(page: Path, pattern: str) -> list[str]:
    return sorted(set(re.findall(pattern, page.read_text())))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files(page):
    """Names of the form tests/test_<name>.py and credit_jax/a/b.py are placeholders."""
    paths = named(page, rf"(?<![\w/])((?:{TOPS})/[\w/.-]*\w\b/?)(?!<)")
    real = [path for path in paths if "/a/" not in path]
    missing = [path for path in real if not (ROOT / path).exists()]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules(page):
    modules = named(page, rf"python -m ((?:{TOPS})[\w.]*)")
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_subcommands(page):
    names = named(page, r"^    (?:\S*bin/)?credit-jax +(\w+)")
    missing = [name for name in names if name not in COMMANDS]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_text_fit_a_screen(page):
    """120 characters, rows of tables too; code and what is made have their own."""
    skipped = r"^```.*?^```$|^<!-- made by:.*?^<!-- the end of what is made -->$"
    text = re.sub(skipped, "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    assert [line for line in lines if len(line) > 120] == []


def test_every_command_has_a_row():
    rows = re.findall(r"^\| `([\w-]+)`", COMMANDS_PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(COMMANDS)


# The commands of docs/plotting.md and docs/forecasting.md.


FOUND = [
    shlex.split(line.strip())[1:]
    for name in ("plotting.md", "forecasting.md")
    for line in (DOCS / name).read_text().replace("\\\n", " ").splitlines()
    if re.match(r"    credit-jax (plot|score|forecast) ", line)
]


@pytest.mark.parametrize("words", FOUND, ids=" ".join)
def test_every_command_of_the_pages_parses(words):
    parser = argparse.ArgumentParser()
    all_commands()[words[0]].load().fill(parser)
    args = vars(parser.parse_args(words[1:]))
    assert {"out", "score", "members"} & args.keys()


def test_the_pages_have_commands_and_the_picture():
    assert {words[0] for words in FOUND} == {"plot", "score", "forecast"}
    assert len(FOUND) > 8
    text = (DOCS / "plotting.md").read_text()
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (DOCS / picture).stat().st_size < 300_000
    assert PAGE_NAME in text


# docs/scoring.md: its commands parse, its names exist, its block runs.


TEXT = (Path(__file__).parents[2] / "docs/scoring.md").read_text()
COMMANDS_SCORING = re.findall(r"^    credit-jax (.+)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS_SCORING)
def test_commands_parse(command, monkeypatch):
    name, *arguments = shlex.split(command)
    given = []
    command = all_commands()[name].load()
    monkeypatch.setattr(command, "run", lambda self: given.append(self) or OK)
    assert main([name, *arguments]) == OK
    assert len(given) == 1


def test_names():
    assert len(COMMANDS_SCORING) == 4
    for name in [*METRICS, *(region.name for region in REGIONS)]:
        assert f"`{name}`" in TEXT, name
    assert len(TEXT.splitlines()) < 100


def test_the_block_runs(tmp_path, monkeypatch, capsys):
    scores = some_scores()
    scores = scores.assign_coords(system=["forecast", "climatology"])
    write_scores(scores, tmp_path / "report")
    monkeypatch.chdir(tmp_path)
    (block,) = code_blocks(TEXT, "python")
    exec(block, {})
    assert "prediction_timedelta" in capsys.readouterr().out


# docs/upstream.md holds the output of tools/upstream.py for the tests' CREDIT.


spec = importlib.util.spec_from_file_location("upstream", ROOT / "tools/upstream.py")
assert spec is not None
assert spec.loader is not None
upstream = importlib.util.module_from_spec(spec)
spec.loader.exec_module(upstream)


def checkout():
    """The folder that has CREDIT's package; nothing of it is imported."""
    found = importlib.util.find_spec("credit")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0]).parent


@pytest.mark.reference
def test_the_page_holds_the_output():
    page = (ROOT / "docs/upstream.md").read_text()
    made = re.search(r"CHECKOUT_OF_CREDIT -->\n(.*)\n<!-- the end", page, re.DOTALL)
    assert made is not None
    assert made[1].splitlines() == upstream.report(checkout())
    for name in re.findall("`(.+?)`", made[1]):
        reasons = page[made.end() :]
        assert (
            name in ("trainer", "data")
            or f"`{name}`" in reasons
            or name
            in {
                "crossformer-diffusion",
                "unet-diffusion",
                "swin",
            }
        ), f"{name}: no reason"


@pytest.mark.reference
def test_what_a_newer_version_adds(tmp_path):
    """A model, an argument, a key and a command that are not here are listed."""
    for path in (checkout() / "credit").rglob("*.py"):
        copy = tmp_path / "credit" / path.relative_to(checkout() / "credit")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())

    def git(*words):
        person = "-c", "user.name=a", "-c", "user.email=a@b.c"
        subprocess.run(["git", "-C", str(tmp_path), *person, *words], check=True)

    git("init", "-q", "-b", "main")
    git("add", "credit")
    git("commit", "-q", "-m", "first")
    git("switch", "-q", "-c", "newer")

    def change(name, old, new):
        path = tmp_path / "credit" / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    first = "_MODEL_REGISTRY = {\n"
    change("models/__init__.py", first, first + '    "newest": ("a.b", "C", "d"),\n')
    change("postblock/square.py", "def __init__(self, ", "def __init__(self, newkey, ")
    change("models/unet_diffusion.py", "frames: int = 2", "frames: int = 3")
    text = "\n\ndef new(conf):\n    return conf['trainer'].get('new_key')\n"
    path = tmp_path / "credit/trainers/utils.py"
    path.write_text(path.read_text() + text)
    train = 'p = sub.add_parser("train"'
    change("cli/_parser.py", train, f'p = sub.add_parser("fly")\n    {train}')
    lines = set(upstream.report(tmp_path)) - set(upstream.report(checkout()))
    assert lines == {
        "- model: `newest`",
        "- postblock `square_transform`: `newkey`",
        "- model `unet-diffusion`: `frames` is 3, here 1",
        "- `trainer`: `new_key`",
        "- `fly`, `ask`",
    }
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
