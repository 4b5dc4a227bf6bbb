"""Maps of forecasts and figures of scores: `python -m credit_jax.plot`.

With --forecast and --variable a map or, if --out ends with .gif, an animation; with
--scores curves, a score card, spectra, rank histograms, or the page of all of these.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from credit_jax.commands import OK, print_line, run_module
from credit_jax.evaluation.regions import REGIONS
from credit_jax.evaluation.scores import CLIMATOLOGY, read_scores
from credit_jax.io.forecast_files import open_forecasts
from credit_jax.visualization.animation import write_animation
from credit_jax.visualization.canvas import SUFFIXES, check_suffix, save_figure
from credit_jax.visualization.card import ERRORS, card_panel, differences
from credit_jax.visualization.choice import Choice, choose, find_lead
from credit_jax.visualization.curves import NAMES, curve_panels
from credit_jax.visualization.maps import (
    Grid,
    Map,
    MapFigure,
    comparison,
    largest_of,
    limits_of,
)
from credit_jax.visualization.page import write_page
from credit_jax.visualization.panels import panels_figure
from credit_jax.visualization.projections import PLAIN, PROJECTIONS, Projection
from credit_jax.visualization.spectra import rank_panels, spectrum_panels
from credit_jax.visualization.summary import BASELINES, GLOBAL, chosen_channels
from credit_jax.visualization.windows import Window, find_window
