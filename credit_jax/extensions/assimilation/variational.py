"""Incremental 4D-Var of one window, with the model as a strong constraint.

With the state x = xb + R v, where B = R R', and G the linearized map from v to what is
observed, the cost is J(v) = |v|^2 / 2 + |y - H(M(x))|^2 / 2, in units of the errors of
the observations (Courtier et al. 1994, doi:10.1002/qj.49712051912).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from credit_jax.config.assimilation import AssimilationConfig
from credit_jax.config.messages import counted
from credit_jax.extensions.adjoint import ForecastMap, Linearized, linearized
from credit_jax.extensions.assimilation.background import StateCovariance
from credit_jax.extensions.assimilation.observations import first_row, place_of
from credit_jax.extensions.assimilation.operators import (
    Interpolation,
    Observed,
    Observer,
)
from credit_jax.forecast.forecaster import to_host
from credit_jax.transforms.base import variable_of

# Part of the cost by which steps at its minimum raise it, as forecasts are float32.
_CONVERGED = 1e-4


@dataclass(frozen=True)
class CGIteration:
    """An iteration of conjugate gradients."""

    outer: int  # number of the linearization, from 1
    inner: int  # from 1
    cost: float  # the quadratic one, after the iteration
    gradient_norm: float


class MissingFieldError(ValueError):
    """Observations of fields that the background lacks where they were made."""

    def __init__(self, missing: np.ndarray, line: str) -> None:
        self.missing = missing
        self.line = line
        super().__init__(
            f"assimilation.observations: observations that cannot be used:\n  {line}\n"
            "  take them out, or leave them out by assimilation.leave_out: [missing], "
            "or fill the field of the initial state by a fill_values block of "
            "preblocks.ic_only"
        )


@dataclass(frozen=True, eq=False)
class Window:
    """The problem of a window."""

    # All steps, in physical units; its first sample counts.
    forecast: ForecastMap
    background: Mapping[str, np.ndarray]  # key -> (level, lat, lon) at the start
    covariance: StateCovariance
    observer: Observer
    observed: Observed

    @cached_property
    def first(self) -> Guess:
        """The background."""
        return self.at(np.zeros(self.covariance.size))

    def at(self, control: np.ndarray) -> Guess:
        """The forecast of a control variable, at which the problem is linearized."""
        increment = self.covariance.fields(control)
        state = {
            key: self._samples(key, x + increment[key])
            for key, x in self.background.items()
        }
        linear = linearized(self.forecast, state)
        fields = self.forecast.run("function", dict(linear.state))
        values = self.observer.values(self.observed, linear.state, fields)
        guess = Guess(self, control, linear, fields, values)
        if not math.isfinite(guess.cost):
            raise self._not_finite(guess)
        return guess

    def _not_finite(self, guess: Guess) -> Exception:
        """Why the values of a guess are not finite."""
        table, wrong = self.observed.table, ~np.isfinite(guess.values)
        holes = {
            variable_of(key): np.isnan(x).any(0)
            for key, x in self.background.items()
            if np.isnan(x).any()
        }
        operators = self.observer.operators.items()
        plain = [name for name, x in operators if isinstance(x, Interpolation)]
        with_operator = ~table["variable"].isin(plain).to_numpy()
        missing = wrong & (with_operator | table["variable"].isin([*holes]).to_numpy())
        if holes and missing.any():
            each = ", ".join(
                f"{name} at {hole.sum()} of {hole.size} points"
                for name, hole in holes.items()
            )
            text = f"missing: {self._counted(missing)}; the background lacks {each}"
            return MissingFieldError(missing, text)
        finite = all(np.isfinite(to_host(x)).all() for x in guess.fields.values())
        if finite and (wrong & with_operator).any():
            text = self._counted(wrong & with_operator)
            return ValueError(
                f"assimilation.operators: no finite value for {text}, of finite "
                "fields; correct the operator"
            )
        advice = (
            "with smaller assimilation.background.scale"
            if guess.control.any()
            else "in a state of the data with another assimilation.start or first_lead"
        )
        return FloatingPointError(
            f"the forecast is not finite at {self._counted(wrong)}; begin {advice}"
        )

    def _counted(self, which: np.ndarray) -> str:
        table = self.observed.table
        row = table.iloc[int(np.argmax(which))]
        first = first_row(row, place_of(row))
        return f"{which.sum()} of {counted(len(table), 'observation')}, {first}"

    def perturbation(self, control: np.ndarray) -> dict[str, np.ndarray]:
        """The change of the state by a control variable, for each sample."""
        fields = self.covariance.fields(control)
        return {key: self._samples(key, x) for key, x in fields.items()}

    def _samples(self, key: str, field: np.ndarray) -> np.ndarray:
        full = field.astype(np.float32)[None, :, None]
        return np.broadcast_to(full, self.forecast.state[key].shape)


@dataclass(frozen=True, eq=False)
class Guess:
    """A control variable, and the linearized problem there."""

    window: Window
    control: np.ndarray  # (control,) v
    linear: Linearized
    fields: Any
    values: np.ndarray  # (obs,) H of the fields

    @property
    def departures(self) -> np.ndarray:
        """(obs,) y - H(M(x))."""
        return self.window.observed.values - self.values

    @cached_property
    def cost(self) -> float:
        """J."""
        scaled = self.departures / self.window.observed.errors
        return float(self.control @ self.control + scaled @ scaled) / 2

    @property
    def gradient(self) -> np.ndarray:
        """(control,) gradient of J."""
        scaled = self.departures / np.square(self.window.observed.errors)
        return self.control - self.transposed(scaled)

    def product(self, change: np.ndarray) -> np.ndarray:
        """(obs,) G times a change of the control variable."""
        window = self.window
        perturbation = window.perturbation(change)
        tangents = self.linear.tangent_linear(perturbation)
        at = dict(self.linear.state), self.fields
        return window.observer.tangents(window.observed, at, (perturbation, tangents))

    def transposed(self, weights: np.ndarray) -> np.ndarray:
        """(control,) G' times weights of observations."""
        window = self.window
        at = dict(self.linear.state), self.fields
        of_start, of_fields = window.observer.gradient(window.observed, at, weights)
        through = self.linear.adjoint(of_fields)
        # The copies of the first sample have no weights.
        total = {
            key: np.float64(to_host(through[key])[0, :, -1])
            + to_host(of_start[key])[0, :, -1]
            for key in through
        }
        return window.covariance.transposed(total)


@dataclass(frozen=True, eq=False)
class Analysis:
    """The analysis of a window."""

    first: Guess
    last: Guess
    iterations: tuple[CGIteration, ...]
    note: str = ""  # why the outer loop ended early

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Key -> (level, lat, lon) of the analysis at the start of the window."""
        return {k: to_host(x)[0, :, -1] for k, x in self.last.linear.state.items()}

    @property
    def chi_squared(self) -> float:
        """2 J / number of observations: 1 if the errors are as large as assumed."""
        return 2 * self.last.cost / max(len(self.last.values), 1)


def analyze(
    window: Window,
    config: AssimilationConfig,
    progress: Callable[[CGIteration], None] = lambda iteration: None,
) -> Analysis:
    """Minimizes the cost by Gauss-Newton steps, each by conjugate gradients."""
    first = last = window.first
    iterations: list[CGIteration] = []

    def report(iteration: CGIteration) -> None:
        iterations.append(iteration)
        progress(iteration)

    for outer in range(1, config.outer_iterations + 1):
        change = gauss_newton_step(last, config, outer, report)
        if not change.any():
            break
        guess = window.at(last.control + change)
        if guess.cost >= last.cost:
            note = (
                f"outer iteration {outer} would raise the cost from {last.cost:.6g} to "
                f"{guess.cost:.6g}, as the forecast is not linear, and was not taken"
            )
            converged = guess.cost - last.cost < _CONVERGED * last.cost
            return Analysis(first, last, tuple(iterations), "" if converged else note)
        last = guess
    return Analysis(first, last, tuple(iterations))


def gauss_newton_step(
    guess: Guess,
    config: AssimilationConfig,
    outer: int,
    progress: Callable[[CGIteration], None],
) -> np.ndarray:
    """Solves (1 + G' R^-1 G) dv = - gradient of J."""
    right = -guess.gradient
    weights = 1 / np.square(guess.window.observed.errors)
    # The last direction p and A p, from which cost and gradient follow without another
    # product.
    products: list[tuple[np.ndarray, np.ndarray]] = []
    previous, applied, count = np.zeros_like(right), np.zeros_like(right), 0

    def product(direction: np.ndarray) -> np.ndarray:
        direction = direction.ravel()
        result = direction + guess.transposed(weights * guess.product(direction))
        products[:] = [(direction.copy(), result)]
        return result

    def callback(solution: np.ndarray) -> None:
        nonlocal previous, applied, count
        ((direction, result),) = products
        moved = solution - previous
        applied = applied + (moved @ direction) / (direction @ direction) * result
        previous, count = solution.copy(), count + 1
        residual = right - applied
        cost = guess.cost - solution @ (right + residual) / 2
        norm = float(np.linalg.norm(residual))
        progress(CGIteration(outer, count, float(cost), norm))

    # Rounding of float32 products makes residuals that should be orthogonal less and
    # less so, differently on every mesh. In the place of a preconditioner each of them
    # loses its parts along those before (Golub and Van Loan 2013, 10.1.3 and 11.3).
    basis = np.empty((config.inner_iterations, right.size))
    num_earlier = 0

    def orthogonal(residual: np.ndarray) -> np.ndarray:
        nonlocal num_earlier
        directions = basis[:num_earlier]
        residual = residual.ravel() - directions.T @ (directions @ residual.ravel())
        basis[num_earlier] = residual / np.linalg.norm(residual)
        num_earlier += 1
        return residual

    def operator(matvec: Callable[[np.ndarray], np.ndarray]) -> LinearOperator:
        shape = right.size, right.size
        return LinearOperator(shape, matvec=matvec, dtype=np.float64)  # type: ignore[call-arg]

    # SciPy's loop is on the host, in float64, and shows each iteration. One that is
    # traced, as lineax's, would run on float32 vectors, and XLA on CPUs runs the
    # collectives of a loop beside later ones.
    solution, _ = cg(
        operator(product),
        right,
        M=operator(orthogonal),
        rtol=config.tolerance,
        maxiter=min(config.inner_iterations, right.size),
        callback=callback,
    )
    return solution
