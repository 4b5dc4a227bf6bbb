"""A small key table and the parameters that it names."""

from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.state_dict.arrangement import LINEAR
from credit_jax.state_dict.key_table import Rule

DEPTH = 3
TABLE = (
    Rule("stem.{i}.weight", "stem/{i}/kernel", LINEAR),
    Rule("stem.{i}.bias", "stem/{i}/bias"),
    Rule("layers.{s}.{d}.weight", "stages/{s}/kernel", LINEAR),
)
PARAM_SPECS = {
    "stem/0/kernel": ParamSpec((4, 2), (None, None), matrix_out=(1,)),
    "stem/0/bias": ParamSpec((2,), (None,)),
    "stages/10/kernel": ParamSpec((4, 2), (None, None), matrix_out=(1,)).stack(DEPTH),
}
