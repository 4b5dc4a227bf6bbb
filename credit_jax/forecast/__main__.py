"""`python -m credit_jax.forecast`: the command of `credit_jax.cli.forecast.command`."""

import runpy

if __name__ == "__main__":
    runpy.run_module(
        "credit_jax.cli.forecast.command", run_name="__main__", alter_sys=True
    )
