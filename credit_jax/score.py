"""`python -m credit_jax.score`: the command of `credit_jax.cli.score`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.score", run_name="__main__", alter_sys=True)
