"""`python -m credit_jax.checkpoint`: the command of `credit_jax.cli.checkpoint`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.checkpoint", run_name="__main__", alter_sys=True)
