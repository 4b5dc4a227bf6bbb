"""`python -m credit_jax.train`: the command of `credit_jax.cli.train`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.train", run_name="__main__", alter_sys=True)
