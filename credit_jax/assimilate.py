"""`python -m credit_jax.assimilate`: the command of `credit_jax.cli.assimilate`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.assimilate", run_name="__main__", alter_sys=True)
