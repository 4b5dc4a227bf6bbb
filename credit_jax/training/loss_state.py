"""Parameters of a loss that are trained together with those of the model.

The loss `base` with `var_weighting: learnable`, for example, has the logarithms of
variances. The parameters are replicated on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import optax

from credit_jax.losses import Loss, initial_parameters


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossState:
    """Parameters of a loss and the state of their optimizer.

    Attributes:
        params: parameters by name.
        opt_state: state of their optimizer.
    """

    params: Any
    opt_state: Any


def init_loss_state(
    loss: Loss, optimizer: optax.GradientTransformation | None
) -> LossState | None:
    """The state before the first step; None for a loss without parameters.

    Raises:
        ValueError: the loss has parameters, and there is no optimizer for them.
    """
    params = initial_parameters(loss)
    if not params:
        return None
    if optimizer is None:
        raise ValueError(
            f"the loss has parameters of its own ({', '.join(params)}); give "
            "make_train_step a loss_optimizer, and init_state the loss_state of "
            "init_loss_state"
        )
    return LossState(params, optimizer.init(params))
