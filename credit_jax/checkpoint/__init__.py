"""Checkpoints of a run, below its `save_loc`.

    model.yml                   the config, as CREDIT names it
    channel_schema.yaml         which channel is what
    checkpoints/
        {step}/                 micro-batches seen when it was written
            weights/            {"params": {path: array}, and the collections of
                                `nn.parameters`: "spectral_norm", "batch_stats"}
            ema/                {path: array}; only with `trainer.use_ema`
            ema_batch_stats/    the average of "batch_stats", float32; only with ema,
                                of models with batch norms
            adapters/           {"base": {path: array}, "weights": {path: array},
                                "ema": {path: array}}: matrices with low-rank adapters,
                                and these; "weights" and "ema" above have the sums
            optimizer/          {"opt_state": {"adam": {"count", "mu", "nu"}},
                                "micro_step", "update_step", "key"}
            loss_scale/         {"scale", "good_updates"}; only in float16
            loss/               {"params": {name: array}, "opt_state"}; only of a loss
                                with trained parameters
            progress/           `Progress` as JSON
            digests.json        SHA-256 and size of every file, to find damage

Every array is stored whole, by its path, whatever mesh wrote it (Orbax, OCDBT); nodes
of a tree without arrays are not stored. A folder whose name ends in
`.orbax-checkpoint-tmp` was not finished; it is never read and is removed at the next
start. A checkpoint converted from elsewhere needs `weights` and `progress` only:
`trainer.load_weights` takes it, and it can be resumed from if it has `optimizer` too.
"""

from credit_jax.checkpoint.progress import PlateauState, Progress
from credit_jax.checkpoint.store import (
    ADAPTERS,
    EMA,
    EMA_STATS,
    LOSS,
    LOSS_SCALE,
    OPTIMIZER,
    WEIGHTS,
    CheckpointStore,
)

__all__ = [
    "ADAPTERS",
    "EMA",
    "EMA_STATS",
    "LOSS",
    "LOSS_SCALE",
    "OPTIMIZER",
    "WEIGHTS",
    "CheckpointStore",
    "PlateauState",
    "Progress",
]
