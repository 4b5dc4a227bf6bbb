"""`python -m credit_jax.submit`: the command of `credit_jax.cli.submit.command`."""

import runpy

if __name__ == "__main__":
    runpy.run_module(
        "credit_jax.cli.submit.command", run_name="__main__", alter_sys=True
    )
