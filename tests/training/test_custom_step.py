"""A training step of one's own: the same run, another loss, and what is refused."""

import pytest

from credit_jax.cli.check import check_config
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support.custom_objects import no_objects_left
from tests.training.test_loop import go, make, terminate_before
from tests.training.tiny import tiny_config, write_yaml

__all__ = ["make", "no_objects_left"]
pytestmark = pytest.mark.usefixtures("tiny_model", "no_objects_left")
CASES = Cases("trainers")

MODULE = """
from dataclasses import replace

import jax.numpy as jnp

import credit_jax


def scaled(model, optimizer, loss, *, factor=1.0, **options):
    def of_tree(tree, context):
        return factor * loss(tree, context)

    return credit_jax.make_train_step(model, optimizer, of_tree, **options)


def positional(model, optimizer):
    pass


def nothing(model, optimizer, loss, **options):
    pass


def broken(model, optimizer, loss, **options):
    return options["momentum"]


def step_of(change):
    def make(model, optimizer, loss, **options):
        step = credit_jax.make_train_step(model, optimizer, loss, **options)
        return lambda *arguments: change(*step(*arguments))

    return make


one_result = step_of(lambda state, info: state)
weights_alone = step_of(lambda state, info: (state.params, info))
other_dtype = step_of(
    lambda state, info: (replace(state, micro_step=state.micro_step * 1.0), info)
)
few_numbers = step_of(lambda state, info: (state, {"loss": info["loss"].sum()}))
fails = step_of(lambda state, info: info["gradient"])
"""


@pytest.fixture
def objects(tmp_path):
    """The changes of a config that make a function of the module its trainer."""
    module = tmp_path / "steps.py"
    module.write_text(MODULE)

    def changes(name, **args):
        custom = {"object_type": "trainer", "module_path": str(module)}
        section = {"custom_objects": {name: custom}, "trainer__type": name}
        return section | ({"trainer__args": args} if args else {})

    return changes


def test_a_run(make, objects, tmp_path):
    """A step like ours, stopped and gone on with; one whose loss is twice as large."""
    straight = make("dp2", save_loc=str(tmp_path / "straight"), trainer__epochs=1)
    go(straight, tmp_path / "straight")
    expected = straight.notes["losses"]
    custom = objects("scaled")
    first = make("dp2", terminate_before(2), trainer__epochs=1, **custom)
    assert go(first, tmp_path)[0].reason == "SIGTERM"
    second = make("dp2", trainer__epochs=1, **custom)
    go(second, tmp_path, resume=True)
    assert first.notes["losses"] + second.notes["losses"] == expected
    rest = {"save_loc": str(tmp_path / "twice"), "trainer__skip_validation": True}
    twice = make("dp2", terminate_before(1), **objects("scaled", factor=2.0), **rest)
    go(twice, tmp_path / "twice")
    assert twice.notes["losses"][0] == 2 * expected[0]


def checked(name, world, objects, tmp_path, no_objects_left, tiny_model):
    changes = objects("scaled" if name == "typing_error" else name)
    if name == "scaled":
        changes["trainer__args"] = {"scale": 2.0}
    if name == "typing_error":
        changes["trainer__type"] = "scale"
    mapping = tiny_config(world, tmp_path / "run", **changes)
    return check_config(write_yaml(tmp_path / "config.yml", mapping)).problems


CASES.rows(checked, "typing_error", "scaled", "positional", "nothing", "broken")
CASES.rows(checked, "one_result", "weights_alone", "other_dtype", "few_numbers")
CASES.rows(checked, "fails")
