"""Positions of the tokens of attention windows within a field."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Array, Int


@dataclass(frozen=True)
class WindowDim:
    """Partition of one dim of a field into windows.

    Attributes:
        windows: number of windows along the dim.
        tokens: number of tokens of a window along the dim.
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
        """Returns the position of a token of a window along the dim."""
        return window * self.window_step + token * self.token_step


@dataclass(frozen=True)
class WindowGrid:
    """Partition of fields into windows: every point is one token of one window.

    Attributes:
        batch: number of samples.
        rows, columns: the windows along the two dims.
    """

    batch: int
    rows: WindowDim
    columns: WindowDim

    @property
    def tokens(self) -> int:
        """Number of tokens of a window."""
        return self.rows.tokens * self.columns.tokens

    @property
    def windows(self) -> int:
        """Number of windows of all samples."""
        return self.batch * self.rows.windows * self.columns.windows

    @property
    def points(self) -> int:
        """Number of points of all samples."""
        return self.batch * self.rows.points * self.columns.points

    def locate(
        self, window: Int[Array, "*shape"], token: Int[Array, "*shape"]
    ) -> Int[Array, "*shape"]:
        """Returns the flat index of the point of each token in (batch, row, column).

        Args:
            window: flat index of the window in (batch, row of windows, window).
            token: flat index of the token in the window, row-major.
        """
        rows, columns = self.rows, self.columns
        column = columns.point(window % columns.windows, token % columns.tokens)
        row_of_windows = window // columns.windows
        row = rows.point(row_of_windows % rows.windows, token // columns.tokens)
        sample = row_of_windows // rows.windows
        return (sample * rows.points + row) * columns.points + column
