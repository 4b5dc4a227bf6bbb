"""Config keys shared by models: padding of the input, corrections of the output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from credit_jax.models.common.config import ModelConfig
from credit_jax.models.common.gen1_post_conf import Gen1PostConf
from credit_jax.models.common.padding import PaddingConfig


def _active_blocks(value: Any) -> Any:
    """Returns the names of the active blocks of a `post_conf`; None if not active."""
    if not isinstance(value, Mapping):
        return value
    if not value.get("activate"):
        return None
    blocks = value.items()
    return [k for k, v in blocks if isinstance(v, Mapping) and v.get("activate")]


PostBlocks = Annotated[tuple[str, ...] | None, BeforeValidator(_active_blocks)]


class CorrectedConfig(ModelConfig):
    """Keys of corrections of the output, shared by CREDIT's models.

    Attributes:
        post_conf: names of the active blocks of `post_conf`, which has no effect, as in
            CREDIT's gen2 training.
        gen1_post_conf: corrections at the end of the forward pass, as in CREDIT's gen1
            training; not a key of CREDIT's gen2.
    """

    post_conf: PostBlocks = None
    gen1_post_conf: Gen1PostConf | None = None

    def without_effect(self) -> dict[str, str]:
        """Returns an active `post_conf`; see `StrictModel.without_effect`."""
        if not self.post_conf:
            return {}
        why = (
            f"{', '.join(self.post_conf)}: CREDIT's gen2 training drops it, too; "
            "correct in postblocks.per_step, or with gen1_post_conf as gen1 does"
        )
        return {"post_conf": why}

    @property
    def files(self) -> Mapping[str, str]:
        """See `ModelConfig.files`."""
        if self.gen1_post_conf is None:
            return {}
        named = self.gen1_post_conf.files.items()
        return {f"gen1_post_conf.{key}": path for key, path in named}

    def check_files(self) -> None:
        """See `ModelConfig.check_files`."""
        if self.gen1_post_conf is not None and self.gen1_post_conf.activate:
            self.gen1_post_conf.check_grid((self.output.height, self.output.width))

    def post_problems(self) -> list[str]:
        """Returns errors of `gen1_post_conf`, one line each."""
        if self.gen1_post_conf is None:
            return []
        return self.gen1_post_conf.problems(self.output.channels, self.output.frames)


class PaddedConfig(CorrectedConfig):
    """Keys of padding and of corrections of the output, shared by CREDIT's models.

    Attributes:
        padding_conf: see `PaddingConfig`.
    """

    small_is_padded: ClassVar[bool] = True

    padding_conf: PaddingConfig | None = None

    @property
    def padding(self) -> PaddingConfig | None:
        """The active padding, or None."""
        conf = self.padding_conf
        return conf if conf is not None and conf.activate else None

    @property
    def pads(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows (north, south) and columns (west, east) to add; zeros for none."""
        pad = self.padding
        return (pad.pad_lat, pad.pad_lon) if pad else ((0, 0), (0, 0))
