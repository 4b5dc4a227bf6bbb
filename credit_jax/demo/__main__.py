"""`python -m credit_jax.demo`: the command of `credit_jax.cli.demo`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.demo", run_name="__main__", alter_sys=True)
