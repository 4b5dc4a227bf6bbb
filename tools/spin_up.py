"""Makes the file of the demo's spin-up anew: python -m tools.spin_up"""

import jax
import pandas as pd

from credit_jax.config.config import DemoConfig
from credit_jax.extensions.demo.dataset import (
    FILE,
    OUTPUTS_PER_DAY,
    SETTINGS,
    write_spun_up,
)
from credit_jax.extensions.demo.dynamics import build_climate
from credit_jax.extensions.demo.write import FIRST_TIME, days_of_year


def spin_up():
    """Returns the state and the rain after the spin-up, computed day by day."""
    demo = DemoConfig(out="", **SETTINGS)
    climate = build_climate(demo.truncation, demo.seed)
    start = FIRST_TIME - pd.Timedelta(days=demo.spinup_days)
    number = demo.spinup_days * OUTPUTS_PER_DAY
    state, rain = climate.initial, None
    for day in days_of_year(pd.date_range(start, periods=number, freq="6h")):
        state, rain = climate.advance(state, day)
    return state, rain


if __name__ == "__main__":
    with jax.numpy_rank_promotion("allow"):
        write_spun_up(*spin_up())
    print(f"{FILE}: {FILE.stat().st_size} bytes")
