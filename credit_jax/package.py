"""`python -m credit_jax.package`: the command of `credit_jax.cli.package`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.package", run_name="__main__", alter_sys=True)
