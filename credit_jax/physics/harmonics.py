"""Spherical harmonics on rows of any latitudes: functions, quadrature, degrees."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

# Largest distance of Gaussian latitudes from those of a grid, in rows.
_NEAR = 0.05


def legendre_functions(
    latitude: np.ndarray, count: int
) -> Float[np.ndarray, "degree order lat"]:
    """Returns the Legendre functions P of real spherical harmonics."""
    # Of each degree, the sum over orders of P^2 is 2 degree + 1: the addition theorem,
    # which makes the variance of a random field the same everywhere.
    sine = np.sin(np.deg2rad(latitude))
    cosine = np.cos(np.deg2rad(latitude))
    polynomials = np.zeros((count, count, len(sine)))
    diagonal = np.ones_like(sine)
    for m in range(count):
        if m > 0:
            diagonal = diagonal * cosine * np.sqrt((2 * m + 1) / (2 * m))
        polynomials[m, m] = diagonal
        if m + 1 < count:
            polynomials[m + 1, m] = np.sqrt(2 * m + 3) * sine * diagonal
        for n in range(m + 2, count):
            a = np.sqrt((4 * n**2 - 1) / (n**2 - m**2))
            b = np.sqrt(((n - 1) ** 2 - m**2) / (4 * (n - 1) ** 2 - 1))
            polynomials[n, m] = a * (
                sine * polynomials[n - 1, m] - b * polynomials[n - 2, m]
            )
    polynomials[:, 1:] *= np.sqrt(2)
    return polynomials


def neighbor_ratio(count: int) -> Float[np.ndarray, "degree order"]:
    """Returns e of sin(lat) P[n] = e[n + 1] P[n + 1] + e[n] P[n - 1]."""
    degree, order = np.arange(count)[:, None], np.arange(count)
    return np.sqrt(np.maximum((degree**2 - order**2) / (4 * degree**2 - 1), 0.0))


def legendre_slopes(
    functions: Float[np.ndarray, "one_more one_more lat"],
) -> Float[np.ndarray, "degree order lat"]:
    """Returns cos(lat) dP/dlat, of all degrees and orders but the largest."""
    count = len(functions) - 1
    full = functions[:, :count]
    ratio = neighbor_ratio(count + 1)[:, :count, None]
    degree = np.arange(count)[:, None, None]
    below = np.concatenate([np.zeros_like(full[:1]), full[: count - 1]])
    # Of degree n it is (n + 1) e[n] P[n - 1] - n e[n + 1] P[n + 1], e of
    # `neighbor_ratio`.
    return (degree + 1) * ratio[:count] * below - degree * ratio[1:] * full[1:]


def quadrature(
    latitude: Float[np.ndarray, " lat"],
) -> tuple[Float[np.ndarray, " lat"], int]:
    """Weights for means over the sphere, and the degree that they resolve."""
    # On Gaussian latitudes they are Gauss's, elsewhere those that integrate polynomials
    # of as many degrees as there are rows. Products of two harmonics up to the returned
    # degree are integrated exactly.
    rows, sine = len(latitude), np.sin(np.deg2rad(latitude.astype(np.float64)))
    nodes, weights = np.polynomial.legendre.leggauss(rows)
    order = np.argsort(sine)
    distance = np.abs(np.rad2deg(np.arcsin(nodes)) - np.asarray(latitude)[order])
    if distance.max() < _NEAR * 180 / rows:
        by_row = np.empty(rows)
        by_row[order] = weights / 2
        return by_row, rows - 1
    moments = np.polynomial.legendre.legvander(sine, rows - 1).T
    try:
        by_row = np.linalg.solve(moments, np.eye(rows)[0])
    except np.linalg.LinAlgError:
        by_row = np.full(rows, -1.0)
    if by_row.min() < 0:
        raise ValueError(
            f"latitudes from {latitude.min():g} to {latitude.max():g} in {rows} rows "
            "are not those of a globe, on which spherical harmonics are; expected "
            "Gaussian or evenly spaced ones from pole to pole"
        )
    return by_row, (rows - 1) // 2
