"""Texts that are no configs: one error, in little time and memory."""

import time

import pytest
import yaml

from credit_jax.config import ConfigError, load_config
from credit_jax.config.yaml_file import parse_yaml, read_yaml


def levels(first, more):
    """Anchors of which each refers ten times to the one before."""
    lines = [f"a0: &a0 {first}"]
    lines += [
        f"a{n}: &a{n} {more(', '.join([f'*a{n - 1}'] * 10))}" for n in range(1, 30)
    ]
    return "\n".join(lines)


BAD = {
    "aliases": (levels("[1]", lambda x: f"[{x}]"), "stand for more than 100000 values"),
    "merged aliases": (
        levels("{x: 1}", lambda x: f"{{<<: [{x}]}}"),
        "stand for more than 100000 values",
    ),
    "a chain of aliases": (
        "\n".join(
            ["a0: &a0 [1]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 3000))]
        ),
        "nested more than 100 deep",
    ),
    "an alias in itself": ("a: &a [*a]", "inside of what it names"),
    "open brackets": ("[" * 30_000, "nested more than 100 deep"),
    "brackets": ("[" * 3000 + "]" * 3000, "nested more than 100 deep"),
    "braces": ("save_loc: {{run}}", "a key must be a text or a number"),
    "a list as key": ("? [1, 2]\n: 3", "a key must be a text or a number"),
    "a tag": ('a: !!timestamp "abc"', "does not fit its tag"),
    "another tag": ("a: !!int abc", "does not fit its tag"),
    "a truth": ("a: !!bool maybe", "does not fit its tag"),
    "digits": (f"a: {'9' * 5000}", "does not fit its tag"),
    "an object": ("a: !!python/object:os.system x", "could not determine a constr"),
}


@pytest.mark.parametrize("name", BAD)
def test_one_error_at_once(name, tmp_path):
    text, message = BAD[name]
    began = time.process_time()
    with pytest.raises(yaml.YAMLError, match=message):
        parse_yaml(text)
    path = tmp_path / "bad.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        read_yaml(path)
    assert str(path) in str(error.value)
    assert time.process_time() - began < 10


def test_aliases_of_configs_are_read():
    text = "a: &a {x: [1, 2]}\nb: *a\nc: {<<: *a, y: 3}"
    expected = {"a": {"x": [1, 2]}, "b": {"x": [1, 2]}, "c": {"x": [1, 2], "y": 3}}
    assert parse_yaml(text) == expected
    assert parse_yaml("") is None


def test_long_files(tmp_path):
    (tmp_path / "long.yml").write_text("#" * (2**22 + 1))
    with pytest.raises(ConfigError, match="has 4194305 bytes, expected at most 41943"):
        read_yaml(tmp_path / "long.yml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=99999999999999999999", "seed: must be an integer of 63 bits"),
        ('save_loc="a\\0b"', "save_loc: holds the character NUL"),
        ("data.timestep='6'", "data.timestep: must be a positive duration such as"),
    ],
)
def test_values_that_no_key_can_have(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config("configs/demo.yaml", [override])


def test_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    config = load_config("configs/demo.yaml", ["save_loc=~/runs/a~b"])
    assert config.save_loc == "/home/someone/runs/a~b"
