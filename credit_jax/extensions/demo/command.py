"""Make the demo data set: `python -m credit_jax.demo --out DIR --days N`."""

from __future__ import annotations

from rich.console import Console

from credit_jax.cli.commands import OK, Command, option, print_line
from credit_jax.config import parse
from credit_jax.config.config import DemoConfig, ForcingConfig
from credit_jax.extensions.demo.dataset import ensure_demo_data


class Demo(Command):
    """Make the demo data set with the dynamical core of dinosaur."""

    example = "--out demo_data/T21 --days 365"

    out: str = option("folder to make", metavar="DIR")
    truncation: str = option("T21 (32 x 64 points), T42 (64 x 128)", "T21")
    days: int = option("of the data set", 560)
    spinup_days: int = option("before it", 200)
    held_out_days: int = option("at its end, not for training", 60)
    seed: int = option("of the initial state", 0)
    equator_to_pole: float = option("of the forcing", 60.0)
    season: float = option("of the forcing", 0.1)
    land_heating: float = option("of the forcing", 40.0)

    def run(self) -> int:
        """Generates the data set, unless the folder already has it."""
        values = self.model_dump(exclude={"debug"})
        forcing = {name: values.pop(name) for name in ForcingConfig.model_fields}
        config = parse(DemoConfig, {**values, "forcing": forcing}, source="demo")
        folder = ensure_demo_data(config, Console(stderr=True))
        print_line(f"{folder} is complete.", stderr=True)
        return OK


main = Demo.main
