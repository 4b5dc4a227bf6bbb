"""`python -m credit_jax.predict`: the command of `credit_jax.cli.predict`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.predict", run_name="__main__", alter_sys=True)
