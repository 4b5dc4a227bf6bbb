"""`python -m credit_jax.certify`: the command of `credit_jax.cli.certify`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("credit_jax.cli.certify", run_name="__main__", alter_sys=True)
