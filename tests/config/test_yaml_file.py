"""Texts that are no configs: one error, in little time and memory."""

import time

import pytest
import yaml

from credit_jax.config import load_config
from credit_jax.config.yaml_file import parse_yaml
from tests.messages.test_config import TEXTS


@pytest.mark.parametrize("name", [*TEXTS][5:-1])
def test_an_error_at_once(name):
    began = time.process_time()
    with pytest.raises(yaml.YAMLError):
        parse_yaml(TEXTS[name])
    assert time.process_time() - began < 10


def test_aliases_of_configs_are_read():
    text = "a: &a {x: [1, 2]}\nb: *a\nc: {<<: *a, y: 3}"
    expected = {"a": {"x": [1, 2]}, "b": {"x": [1, 2]}, "c": {"x": [1, 2], "y": 3}}
    assert parse_yaml(text) == expected
    assert parse_yaml("") is None


def test_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    config = load_config("configs/demo.yaml", ["save_loc=~/runs/a~b"])
    assert config.save_loc == "/home/someone/runs/a~b"
