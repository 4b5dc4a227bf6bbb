"""`python -m credit_jax`: the console command where it is not on the path."""

import sys

from credit_jax.cli.console import main

if __name__ == "__main__":
    sys.exit(main())
