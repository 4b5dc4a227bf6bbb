"""Names of the parts of a step in profiles and compiled programs.

Each is a `jax.named_scope`; an operation belongs to the part of its innermost scope.
The scopes of row exchanges are in `parallel.rows.reshard`.
"""

INPUT = "input"  # casts, folds frames into channels, pads
EMBEDDING = "embedding"  # strided convolutions and patches
BLOCKS = "blocks"  # residual sums, reads and writes of the loop over blocks
ATTENTION = "attention"
POSITION_BIAS = "position_bias"  # of attention
FEED_FORWARD = "feed_forward"
NORM = "norm"  # layer and group norms, wherever they are
DECODER = "decoder"
OUTPUT = "output"  # crops the padding, interpolates, unfolds frames
SPECTRAL_NORM = "spectral_norm"  # power iteration, and division of the weights
PARAMETERS = "parameters"  # casts and gathers of a block, reduce-scatter of gradients
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
