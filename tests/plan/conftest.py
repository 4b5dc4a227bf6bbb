"""Plans of a small model on a small data set."""

import pytest

from credit_jax.config import build_config
from credit_jax.plan import plan_run
from tests.support.configs import plan_problems
from tests.training.conftest import tiny_model, world
from tests.training.tiny import tiny_config

__all__ = ["tiny_model", "world"]


@pytest.fixture
def plan(world, tmp_path, tiny_model):
    """`plan(**changes)`, and `plan.problems(**changes)`."""

    def config(changes):
        return build_config(tiny_config(world, tmp_path, **changes))

    def plan_it(with_data=True, num_devices=None, **changes):
        return plan_run(config(changes), with_data=with_data, num_devices=num_devices)

    def problems(with_data=True, num_devices=None, **changes):
        options = {"with_data": with_data, "num_devices": num_devices}
        return [*plan_problems(config(changes), **options)]

    plan_it.problems = problems
    return plan_it
