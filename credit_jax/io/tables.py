"""Tables on the terminal and in logs."""

from __future__ import annotations

from rich.console import Console
from rich.segment import Segments
from rich.table import Table

from credit_jax.io.activity import line_written

# Columns of the widest table.
_WIDEST = 1000


def print_table(table: Table, console: Console | None = None) -> None:
    """Prints a table as wide as its rows: terminals wrap them, and no number is cut.

    Args:
        table: the table.
        console: console that receives it; None is stdout.
    """
    console = console or Console()
    # Rich shortens cells to the terminal, and to 80 columns where there is none: an
    # error of 13 became "1".
    options = console.options.update(max_width=_WIDEST)
    console.print(Segments(console.render(table, options)), soft_wrap=True)
    line_written()
