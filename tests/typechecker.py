"""The run-time type checker of the jaxtyping hook, see addopts in pyproject.toml."""

from beartype import BeartypeConf, beartype

# An int where a float is asked for is right, as it is for pyright.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
