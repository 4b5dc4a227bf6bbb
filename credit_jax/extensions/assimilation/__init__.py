"""4D-Var: analyses from forecasts of a model and observations.

>>> analysis = assimilation.analyze(window, config.assimilation)
>>> analysis.chi_squared, analysis.state["ERA5/prognostic/3d/T"].shape
"""

from credit_jax.extensions.assimilation.background import (
    BackgroundCovariance,
    read_background,
)
from credit_jax.extensions.assimilation.background_fit import fit_background
from credit_jax.extensions.assimilation.observations import (
    TrajectoryGrid,
    read_observations,
)
from credit_jax.extensions.assimilation.operators import Operator, OperatorEntry
from credit_jax.extensions.assimilation.variational import Analysis, Window, analyze

__all__ = [
    "Analysis",
    "BackgroundCovariance",
    "Operator",
    "OperatorEntry",
    "TrajectoryGrid",
    "Window",
    "analyze",
    "fit_background",
    "read_background",
    "read_observations",
]
