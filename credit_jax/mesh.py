"""`python -m credit_jax.mesh`: the command of `credit_jax.cli.mesh`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.mesh", run_name="__main__", alter_sys=True)
