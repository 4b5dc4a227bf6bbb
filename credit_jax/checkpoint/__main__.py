"""`python -m credit_jax.checkpoint verify DIR`: the command of `cli.checkpoint`."""

import importlib
import sys

if __name__ == "__main__":
    command = importlib.import_module("credit_jax.cli.checkpoint")
    sys.exit(command.main(prog="python -m credit_jax.checkpoint"))
