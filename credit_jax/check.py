"""`python -m credit_jax.check`: the command of `credit_jax.cli.check.command`."""

import runpy

if __name__ == "__main__":
    runpy.run_module(
        "credit_jax.cli.check.command", run_name="__main__", alter_sys=True
    )
