"""The state of the demo climate after its spin-up, which comes with the package.

Spectral coefficients in float32, as the model has them: what follows is what followed
the spin-up on the machine that made the file. `python -m tools.spin_up` makes it anew,
after a change of the climate.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, Float

from credit_jax.config.demo import DemoConfig, ForcingConfig

if TYPE_CHECKING:
    from credit_jax.demo.dynamics import Climate

FILE = Path(__file__).with_name("spun_up.npz")
LAYOUT = 1  # version of the data set and of the climate, raised at any change
# What the state depends on; the other settings begin after the spin-up.
SETTINGS = {
    "truncation": "T21",
    "spinup_days": 200,
    "seed": 0,
    "forcing": ForcingConfig(),
}


def is_spun_up(demo: DemoConfig) -> bool:
    """Whether the state after the spin-up of a data set comes with the package."""
    settings = {name: getattr(demo, name) for name in SETTINGS}
    return settings == SETTINGS and _layout() == LAYOUT


def read_spun_up(climate: "Climate") -> tuple[Any, Float[np.ndarray, "lat lon"]]:
    """Returns the state at the first time of the data set, and the rain before it.

    Args:
        climate: the climate of the settings `SETTINGS`.
    """
    leaves, structure = jax.tree.flatten(climate.initial)
    with np.load(FILE, allow_pickle=False) as arrays:
        state = [arrays[f"state_{number}"] for number in range(len(leaves))]
        return jax.tree.unflatten(structure, state), arrays["rain"]


def write_spun_up(state: Any, rain: Float[Array, "lat lon"], file: Path = FILE) -> None:
    """Writes the file that `read_spun_up` reads.

    Args:
        state: spectral coefficients at the first time of the data set.
        rain: (lat, lon) in m of water since 6 hours before.
        file: path of the file, which is replaced.
    """
    leaves = enumerate(jax.tree.leaves(state))
    arrays: dict[str, Any] = {"layout": LAYOUT, "rain": np.asarray(rain)}
    arrays |= {f"state_{number}": np.asarray(leaf) for number, leaf in leaves}
    np.savez_compressed(file, **arrays)


def _layout() -> int:
    with np.load(FILE, allow_pickle=False) as arrays:
        return int(arrays["layout"])
