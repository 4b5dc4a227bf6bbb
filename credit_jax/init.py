"""`python -m credit_jax.init`: the command of `credit_jax.cli.init.command`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.init.command", run_name="__main__", alter_sys=True)
