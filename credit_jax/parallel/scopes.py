"""Names of the parts of a step in profiles and compiled programs.

Each is a `jax.named_scope`; the innermost name of an operation says which part it
belongs to. What rows are moved for has names of its own (`parallel.rows.reshard`).
"""

INPUT = "input"  # casts, folds frames into channels, pads
EMBEDDING = "embedding"  # strided convolutions and patches
BLOCKS = "blocks"  # residual sums, and what the loop over blocks reads and keeps
ATTENTION = "attention"
POSITION_BIAS = "position_bias"  # of attention
FEED_FORWARD = "feed_forward"
NORM = "norm"  # layer and group norms, wherever they are
DECODER = "decoder"
OUTPUT = "output"  # crops the padding, interpolates, unfolds frames
SPECTRAL_NORM = "spectral_norm"  # power iteration, and division of the weights
PARAMETERS = "parameters"  # of a block: cast, gathered by FSDP, gradients scattered
LOSS = "loss"
UPDATE = "update"  # sum and norm of the gradient, clipping, optimizer, EMA

PARTS = (
    INPUT,
    EMBEDDING,
    BLOCKS,
    ATTENTION,
    POSITION_BIAS,
    FEED_FORWARD,
    NORM,
    DECODER,
    OUTPUT,
    SPECTRAL_NORM,
    PARAMETERS,
    LOSS,
    UPDATE,
)
