"""Noise schedules of a diffusion process, and tables derived from them.

As in credit/diffusion.py, all values are computed in float64 and stored in float32, as
the buffers of CREDIT's checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float

PerStep = Float[np.ndarray, " step"]
# Largest beta of the cosine and the sigmoid schedule.
LARGEST_BETA = 0.999


def linear_betas(timesteps: int) -> PerStep:
    """Linear schedule, betas from 0.1 / T to 20 / T: Ho et al. (2020) scaled to T."""
    scale = 1000 / timesteps
    return np.linspace(scale * 0.0001, scale * 0.02, timesteps)


def cosine_betas(timesteps: int, s: float = 0.008) -> PerStep:
    """Cosine schedule: Nichol and Dhariwal (2021).

    alpha_bar(t) is proportional to cos^2((t / T + s) / (1 + s) pi / 2).
    """
    t = np.linspace(0, timesteps, timesteps + 1) / timesteps
    return _betas_of(np.cos((t + s) / (1 + s) * np.pi * 0.5) ** 2)


def sigmoid_betas(
    timesteps: int, start: float = -3, end: float = 3, tau: float = 1
) -> PerStep:
    """Sigmoid schedule: Jabri et al. (2022), figure 8.

    alpha_bar(t) follows a sigmoid from `start` to `end` with temperature `tau`. The
    values at both ends are computed in float32, as in CREDIT.
    """
    t = np.linspace(0, timesteps, timesteps + 1) / timesteps
    first, last = (_sigmoid32(end_of / tau) for end_of in (start, end))
    inner = (t * (end - start) + start) / tau
    return _betas_of((-1.0 / (1.0 + np.exp(-inner)) + last) / (last - first))


SCHEDULES: Mapping[str, Callable[..., PerStep]] = {
    "linear": linear_betas,
    "cosine": cosine_betas,
    "sigmoid": sigmoid_betas,
}


def _sigmoid32(x: float) -> np.float64:
    """Sigmoid of a number rounded to float32, with a result rounded to float32."""
    return np.float64(np.float32(1.0 / (1.0 + np.exp(-np.float64(np.float32(x))))))


def _betas_of(alphas_cumprod: Float[np.ndarray, " edge"]) -> PerStep:
    """Returns betas from alpha_bar at the T + 1 edges of the steps."""
    relative = alphas_cumprod / alphas_cumprod[0]
    return np.clip(1 - relative[1:] / relative[:-1], 0, LARGEST_BETA)


def tables(
    betas: PerStep, objective: str, largest_snr: float | None
) -> dict[str, PerStep]:
    """Returns all quantities that depend only on the step, float32, in CREDIT's order.

    Args:
        betas: variances that the steps add, float64.
        objective: "pred_noise", "pred_x0" or "pred_v".
        largest_snr: maximum signal-to-noise ratio in "loss_weight" (Hang et al., 2023);
            None for no maximum.
    """
    alphas = 1.0 - betas
    product = np.cumprod(alphas)
    before = np.concatenate([[1.0], product[:-1]])
    variance = betas * (1.0 - before) / (1.0 - product)
    snr = product / (1 - product)
    clipped = snr if largest_snr is None else np.minimum(snr, largest_snr)
    weights = {
        "pred_noise": clipped / snr,
        "pred_x0": clipped,
        "pred_v": clipped / (snr + 1),
    }
    wide = {
        "betas": betas,
        "alphas_cumprod": product,
        "alphas_cumprod_prev": before,
        "sqrt_alphas_cumprod": np.sqrt(product),
        "sqrt_one_minus_alphas_cumprod": np.sqrt(1.0 - product),
        "log_one_minus_alphas_cumprod": np.log(1.0 - product),
        "sqrt_recip_alphas_cumprod": np.sqrt(1.0 / product),
        "sqrt_recipm1_alphas_cumprod": np.sqrt(1.0 / product - 1),
        "posterior_variance": variance,
        "posterior_log_variance_clipped": np.log(np.maximum(variance, 1e-20)),
        "posterior_mean_coef1": betas * np.sqrt(before) / (1.0 - product),
        "posterior_mean_coef2": (1.0 - before) * np.sqrt(alphas) / (1.0 - product),
        "loss_weight": weights[objective],
    }
    return {name: table.astype(np.float32) for name, table in wide.items()}


def ddim_times(timesteps: int, samples: int) -> list[int]:
    """Returns the steps of DDIM, from T - 1 down to -1, which is the sample itself.

    They are `samples` + 1 numbers from -1 to T - 1, equally spaced in float32 as by
    torch.linspace (each half from its end, with product and sum rounded once), then
    truncated towards 0.
    """
    first, last = np.float64(-1), np.float64(timesteps - 1)
    step = np.float64(np.float32(last - first) / np.float32(samples))
    index = np.arange(samples + 1)
    upward, downward = first + step * index, last - step * (samples - index)
    spaced = np.where(index < (samples + 1) // 2, upward, downward)
    return [int(time) for time in spaced.astype(np.float32)[::-1]]
