"""`python -m credit_jax.optimize_ic`: the command of `credit_jax.cli.optimize_ic`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.optimize_ic", run_name="__main__", alter_sys=True)
