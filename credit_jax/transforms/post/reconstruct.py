"""`reconstruct`: splits a prediction to named fields."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.tree import by_source
from credit_jax.transforms.base import FieldTree, Transform


class ReconstructArgs(StrictModel):
    """Splits the prediction, or the target, into named fields.

    Attributes:
        detach: whether to stop gradients at the fields.
        in_key: entry to split: "y_pred", "y" for the target, or "x".
        out_key: entry for the fields.

    Differs from CREDIT: splits "x", too, for transforms that compare with the input.
    """

    detach: bool = True
    in_key: str = "y_pred"
    out_key: str = "y_processed"


@dataclasses.dataclass(frozen=True)
class Reconstruct(Transform):
    """Splits (batch, channel, time, lat, lon) by the channel map of x or of y.

    Attributes:
        args: see `ReconstructArgs`.
    """

    args: ReconstructArgs

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Adds the entry `out_key`, {source: {key: (batch, level, time, lat, lon)}}.

        Args:
            tree: has `in_key` (batch, channel, time, lat, lon) or (batch, channel, lat,
                lon), and "channel_map" ("input_channel_map" for x) {key: slice}.
            context: not used.

        Raises:
            ValueError: an entry is missing or has another number of channels.
        """
        flat, slices = self._take(tree)
        if flat.ndim == 4:
            flat = flat[:, :, None]
        if self.args.detach and isinstance(flat, jax.Array):
            flat = jax.lax.stop_gradient(flat)
        fields = {key: flat[:, place] for key, place in slices.items()}
        return {**tree, self.args.out_key: by_source(fields)}

    def attached(self) -> Reconstruct:
        """Returns the block without the stop of gradients."""
        return Reconstruct(self.args.model_copy(update={"detach": False}))

    def _take(self, tree: FieldTree) -> tuple[Any, dict[str, slice]]:
        channel_map = "input_channel_map" if self.args.in_key == "x" else "channel_map"
        for key in (self.args.in_key, channel_map):
            if key not in tree:
                raise ValueError(
                    f"reconstruct: the batch has no {key!r}; it has: {sorted(tree)}"
                )
        flat, slices = tree[self.args.in_key], tree[channel_map]
        count = max(place.stop for place in slices.values())
        if flat.shape[1] != count:
            raise ValueError(
                f"reconstruct: {self.args.in_key!r} has {flat.shape[1]} channels, the "
                f"channel map {count}"
            )
        return flat, slices
