"""Checks the config of a diffusion model, whose training differs from other models."""

from __future__ import annotations

from credit_jax.config import Config
from credit_jax.losses import LOSSES
from credit_jax.models.common.config import ModelConfig
from credit_jax.plan.findings import Findings


def process_findings(config: Config, model: ModelConfig) -> Findings:
    """Finds problems and notes of training the network of a diffusion process.

    The network is trained on single steps to predict the noise, the target or v at each
    point. Its output is no state: postblocks cannot correct it, and it cannot be fed
    back to a later step. There are no findings for other models.

    Args:
        config: the whole config.
        model: the validated `model:` section.
    """
    findings = Findings()
    if model.process is None:
        return findings
    if config.data.forecast_len > 1:
        findings.problems.append(
            f"data.forecast_len: {model.type} is trained on single steps, got "
            f"{config.data.forecast_len}; expected 1 (CREDIT feeds the output of the "
            "network, which is no state, back)"
        )
    if config.trainer.ensemble_size > 1:
        findings.problems.append(
            f"trainer.ensemble_size: {model.type} is trained on single samples, got "
            f"{config.trainer.ensemble_size}; expected 1 (members of a forecast are in "
            "inference.members)"
        )
    loss = config.loss
    name = None if loss.is_base else loss.type or loss.training_loss
    if name is None or (name in LOSSES and LOSSES[name].build_pointwise is None):
        points = [
            key for key, entry in LOSSES.items() if entry.build_pointwise is not None
        ]
        findings.problems.append(
            f"loss: {name or 'base'} cannot be weighted by the step of the noise, as "
            f"{model.type} needs; expected one of {', '.join(points)}"
        )
    for key in ("use_power_loss", "use_spectral_loss"):
        if loss.is_weighted and getattr(loss, key):
            findings.problems.append(
                f"loss.{key}: {model.type} is trained on noised fields, whose spectra "
                "say nothing; remove the key"
            )
    findings.notes.append(
        f"a validation sample takes {model.process.num_samples} evaluations of the "
        "network; postblocks correct samples, and nothing in training"
    )
    return findings
