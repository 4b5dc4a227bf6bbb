"""Key tables with gaps and overlaps."""

import re

import pytest

from credit_jax.state_dict.arrangement import LINEAR
from credit_jax.state_dict.key_map import make_key_map
from credit_jax.state_dict.key_table import Rule
from tests.state_dict.tables import PARAM_SPECS, TABLE


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (TABLE[1:], "stem/0/kernel: 0 rules match (none), expected 1"),
        (
            (*TABLE, Rule("other.{s}.weight", "stem/{s}/kernel", LINEAR)),
            "stem/0/kernel: 2 rules match (stem/{i}/kernel, stem/{s}/kernel)",
        ),
        (
            (TABLE[0], Rule("stem.{i}.weight", "stem/{i}/bias"), TABLE[2]),
            "stem.0.weight: fills 2 arrays, expected 1",
        ),
        (
            (*TABLE[:2], Rule("layers.{s}.weight", "stages/{s}/kernel", LINEAR)),
            "stages/10/kernel: layers.{s}.weight does not match the parameter spec",
        ),
    ],
    ids=["no rule", "two rules", "a key used twice", "not stacked"],
)
def test_a_table_with_a_gap_or_an_overlap_is_refused(table, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        make_key_map(table, PARAM_SPECS)
