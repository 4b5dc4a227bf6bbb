"""Config keys shared by models: padding of the input, corrections of the output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from credit_jax.config import StrictModel
from credit_jax.models.common.config import ModelConfig
from credit_jax.models.common.gen1_post_conf import Gen1PostConf
from credit_jax.parallel.domain.padding import check_padding


def repeated(count: int) -> Any:
    """Returns a validator of a tuple field: an integer is repeated `count` times."""

    def repeat(value: Any) -> Any:
        return (value,) * count if isinstance(value, int) else value

    return BeforeValidator(repeat)


Ends = Annotated[tuple[int, int], repeated(2)]


class PaddingConfig(StrictModel):
    """`padding_conf`: rows beyond the poles and columns around the globe.

    Attributes:
        activate: whether to pad.
        mode: "earth" (across the pole) or "mirror" (reflected); see
            `parallel.domain.padding.pad_globe`.
        pad_lat: number of rows to add (north, south); an integer for both.
        pad_lon: number of columns to add (west, east); an integer for both.
    """

    activate: bool = True
    mode: Literal["earth", "mirror"] = "earth"
    pad_lat: Ends = (40, 40)
    pad_lon: Ends = (40, 40)


def padding_problems(
    padding: PaddingConfig | None, height: int, width: int
) -> list[str]:
    """Returns an error if a padding needs more points than the grid has.

    Args:
        padding: active padding, or None.
        height, width: size of the grid.
    """
    if padding is None:
        return []
    try:
        check_padding(padding.mode, padding.pad_lat, padding.pad_lon, height, width)
    except ValueError as error:
        return [f"model.{error}"]
    return []


def flat_padding_problems(
    padding: PaddingConfig | None, pad_lat: int | None, pad_lon: int | None
) -> list[str]:
    """Returns an error if a config has flat padding keys but no `padding_conf`.

    Args:
        padding: `model.padding_conf`.
        pad_lat, pad_lon: the flat keys of older configs.
    """
    flat = {"pad_lat": pad_lat, "pad_lon": pad_lon}
    nonzero = {key: value for key, value in flat.items() if value}
    if not nonzero or padding is not None:
        return []
    return [
        f"model has {' and '.join(f'{k}: {v}' for k, v in nonzero.items())} and "
        "no padding_conf: CREDIT's older programs pad by reflection then, "
        "its newer ones not at all. For the weights of an older run write "
        "padding_conf: {activate: true, mode: mirror, pad_lat: "
        f"{[pad_lat or 0] * 2}, pad_lon: {[pad_lon or 0] * 2}}}, "
        "else remove the keys"
    ]


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
