"""Small config sections for tests."""

from credit_jax.config.trainer import TrainerConfig


def trainer_config(**settings) -> TrainerConfig:
    """Returns a `trainer` section with all required keys, and `settings`."""
    required = {
        "type": "gen2",
        "parallelism": {},
        "learning_rate": 1e-3,
        "weight_decay": 0.0,
        "amp": False,
        "train_batch_size": 1,
        "valid_batch_size": 1,
    }
    return TrainerConfig(**required | settings)
