"""`python -m credit_torch_bridge config`: input, output and invalid files."""

import shutil
from pathlib import Path

import pytest

from credit_jax.config import load_config
from credit_jax.config.yaml_file import read_yaml
from credit_torch_bridge import convert_config

FOLDER = Path(__file__).parents[1] / "config" / "configs"
BOMB = "a0: &a0 [1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
STRANGE = {
    "binary": b"\x89HDF\r\n\x1a\n\x00\xff",
    "no YAML": b"data: [1, 2\nmodel: }",
    "nothing": b"",
    "a list": b"- data\n- model\n",
    "a text": b"hello",
    "twice": b"data: 1\ndata: 2\n",
    "a python object": b"data: !!python/object/apply:os.system ['touch bad']\n",
    "large": b"data: " + b"x" * 1_100_000,
    "deep": b"data: " + b"[" * 3000 + b"]" * 3000,
    "aliases of aliases": BOMB.encode(),
    "merges of merges": MERGES.encode(),
    "in itself": b"data: &a {source: *a}\nmodel: {}\nloss: {}\ntrainer: {}\n",
    "no sections": b"data: {source: {}}\n",
    "odd sections": b"data: {source: 3}\nmodel: {type: [1]}\nloss: {}\ntrainer: {}\n",
    "odd keys": b"1: 2\nnull: 3\ndata: {1: 2}\n",
}


@pytest.mark.parametrize("to", ["gen2", "jax"])
@pytest.mark.parametrize("name", STRANGE)
def test_strange_files(bridge, tmp_path, name, to):
    """Invalid files give one error, exit code 2 and no output."""
    path = tmp_path / "odd.yml"
    path.write_bytes(STRANGE[name])
    code, text = bridge("config", "--to", to, path, "--out", tmp_path / "new.yml")
    print(text[:400])
    assert code == 2
    assert text.startswith("error: ")
    assert "Traceback" not in text
    assert sorted(tmp_path.iterdir()) == [path]


def test_no_file(bridge, tmp_path):
    code, text = bridge("config", "--to", "jax", "none.yml", "--out", tmp_path / "a")
    assert (code, "does not exist" in text) == (2, True)
    assert not list(tmp_path.iterdir())


def test_out_is_there(bridge, tmp_path):
    """No file is overwritten, nor is the input file."""
    path = tmp_path / "a.yml"
    shutil.copy(FOLDER / "gen1.yml", path)
    before = path.read_bytes()
    code, text = bridge("config", "--to", "gen2", path, "--out", path)
    assert (code, "something already" in text) == (2, True)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "to"), [("gen1", "gen2"), ("gen1", "jax"), ("jax", "gen2")]
)
def test_files(bridge, tmp_path, name, to):
    """The output is that of `convert_config`; the report names each change."""
    path, out = FOLDER / f"{name}.yml", tmp_path / "deep" / "new.yml"
    code, text = bridge("config", "--to", to, path, "--out", out)
    print(text)
    assert code == 0
    config, report = convert_config(read_yaml(path), to=to)
    assert read_yaml(out) == config
    assert "&id" not in out.read_text()
    for line in report.lines():
        assert f"  {line}\n" in text
    again = tmp_path / "again.yml"
    code, text = bridge("config", "--to", to, out, "--out", again)
    assert (code, f"is {to} already; written as it is" in text) == (0, True)
    assert again.read_bytes() == out.read_bytes()
    assert [p for p in tmp_path.rglob("*") if ".part-" in p.name] == []


def test_comments_stay_in_what_is_converted_already(bridge, tmp_path):
    out = tmp_path / "same.yml"
    code, _ = bridge("config", "--to", "gen2", FOLDER / "gen2.yml", "--out", out)
    assert code == 0
    assert out.read_bytes() == (FOLDER / "gen2.yml").read_bytes()


def test_options(bridge, tmp_path):
    out = tmp_path / "new.yml"
    words = ["--set", "model.post_conf.activate=true", "--level-coord", "lev"]
    given = ["config", "--to", "gen2", FOLDER / "gen1.yml", "--out", out, *words]
    code, text = bridge(*given)
    assert (code, "model.post_conf: tracer_fixer active" in text) == (2, True)
    assert not out.exists()
    code, text = bridge(*given, "--drop", "model.post_conf")
    assert code == 0, text
    assert read_yaml(out)["data"]["source"]["ERA5"]["level_coord"] == "lev"


def test_training_names_this_command(tmp_path):
    """A config of generation 1 given to credit_jax's training."""
    with pytest.raises(ValueError, match="credit-jax config --to jax"):
        load_config(FOLDER / "gen1.yml")
