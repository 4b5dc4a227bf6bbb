"""`python -m credit_jax.plot`: the command of `credit_jax.cli.plot`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.plot", run_name="__main__", alter_sys=True)
