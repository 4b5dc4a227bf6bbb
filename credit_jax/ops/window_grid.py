"""Where the tokens of attention windows lie in a field."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Array, Int


@dataclass(frozen=True)
class WindowDim:
    """One dim of a field in windows.

    Attributes:
        windows: number of windows along the dim.
        tokens: of a window along the dim.
        window_step: points from one window to the next.
        token_step: points from one token of a window to the next.
    """

    windows: int
    tokens: int
    window_step: int
    token_step: int

    @property
    def points(self) -> int:
        """Length of the dim."""
        return self.windows * self.tokens

    def point(self, window: Array, token: Array) -> Array:
        """Position of a token of a window."""
        return window * self.window_step + token * self.token_step


@dataclass(frozen=True)
class WindowGrid:
    """The windows of fields: every point is one token of one window.

    Attributes:
        batch: samples.
        rows, columns: the two dims.
    """

    batch: int
    rows: WindowDim
    columns: WindowDim

    @property
    def tokens(self) -> int:
        """Of a window."""
        return self.rows.tokens * self.columns.tokens

    @property
    def windows(self) -> int:
        """Of all samples."""
        return self.batch * self.rows.windows * self.columns.windows

    @property
    def points(self) -> int:
        """Of all samples."""
        return self.batch * self.rows.points * self.columns.points

    def locate(
        self, window: Int[Array, "*shape"], token: Int[Array, "*shape"]
    ) -> Int[Array, "*shape"]:
        """Point of each token, samples outermost, then rows.

        Args:
            window: number of its window, samples outermost, then rows of windows.
            token: its number in the window, row-major.
        """
        rows, columns = self.rows, self.columns
        column = columns.point(window % columns.windows, token % columns.tokens)
        row_of_windows = window // columns.windows
        row = rows.point(row_of_windows % rows.windows, token // columns.tokens)
        sample = row_of_windows // rows.windows
        return (sample * rows.points + row) * columns.points + column
