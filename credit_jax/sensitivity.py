"""`python -m credit_jax.sensitivity`: the command of `credit_jax.cli.sensitivity`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.sensitivity", run_name="__main__", alter_sys=True)
