"""`python -m credit_jax.preprocess`: the command of `credit_jax.cli.preprocess`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.preprocess", run_name="__main__", alter_sys=True)
