"""Live progress: a bar on a terminal, lines of text everywhere else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from credit_jax.config.messages import printable
from credit_jax.io.activity import description, line_written, live_display

PLAIN_SECONDS = 10.0
_WIDEST = 1000  # columns of a table
_SMOOTH = 0.9


class Display:
    """Progress of a run on the console, as a context manager."""

    def __init__(self, console: Console | None = None, *, silent: bool = False) -> None:
        """Chooses bar or lines by whether the console is a terminal."""
        self.console = console or Console()
        self._silent = silent
        self._bar: Progress | None = None
        self._task = None
        self._live = ExitStack()

    def __enter__(self) -> Display:
        if self.console.is_terminal and not self._silent:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total}"),
                _NumbersColumn(),
                console=self.console,
                transient=True,
            )
            self._live.enter_context(live_display())
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None
            self._live.close()

    def start(self, title: str, *, total: int, done: int = 0, left: int = 0) -> None:
        """Begins a phase of the run: the training or validation batches of an epoch."""
        # Batches: of the phase, of it by an earlier run, of the run after it.
        self._title, self._total, self._done, self._left = title, total, done, left
        self._rate = Rate()
        self._last_line = time.monotonic()
        if self._bar:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._task = self._bar.add_task(title, total=total, completed=done, text="")

    def advance(
        self,
        batches: int,
        samples: int,
        numbers: Mapping[str, int | float] | None = None,
    ) -> None:
        """Advances by finished batches."""
        self._done += batches
        self._rate.add(batches, samples)
        parts = [f"{name} {value:.4g}" for name, value in (numbers or {}).items()]
        if self._rate.samples_per_second:
            parts.append(f"{self._rate.samples_per_second:.3g} samples/s")
            left = self._total - self._done + self._left
            parts.append(f"{clock(left * self._rate.seconds_per_batch)} left")
        text, now = "  ".join(parts), time.monotonic()
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=self._done, text=text)
        elif now - self._last_line >= PLAIN_SECONDS or self._done == self._total:
            self._last_line = now
            self.message(f"{self._title}  {self._done}/{self._total}  {text}")

    def message(self, text: str) -> None:
        """Prints a line that stays above the bar."""
        if not self._silent:
            text = printable(text)
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)
            line_written()


class _NumbersColumn(ProgressColumn):
    """The numbers of the last batch; what is being done, until there are any."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["text"] or description())


class Rate:
    """Smoothed speed, without the first batch, which compiles."""

    def __init__(self) -> None:
        self._before: float | None = None
        self.seconds_per_batch = 0.0
        self.samples_per_second = 0.0

    def add(self, batches: int, samples: int) -> None:
        """Adds batches finished since the last call."""
        now = time.monotonic()
        if self._before is not None:
            seconds = max(now - self._before, 1e-9)
            keep = _SMOOTH if self.seconds_per_batch else 0.0
            mix = lambda old, new: keep * old + (1 - keep) * new  # noqa: E731
            self.seconds_per_batch = mix(self.seconds_per_batch, seconds / batches)
            self.samples_per_second = mix(self.samples_per_second, samples / seconds)
        self._before = now


def clock(seconds: float) -> str:
    """Hours, minutes, seconds."""
    total = int(seconds)
    return f"{total // 3600}:{total % 3600 // 60:02d}:{total % 60:02d}"


def print_table(table: Table, console: Console | None = None) -> None:
    """Prints a table as wide as its rows: terminals wrap them, and no number is cut."""
    console = console or Console()
    # Rich shortens cells to the terminal, and to 80 columns where there is none: an
    # error of 13 became "1".
    options = console.options.update(max_width=_WIDEST)
    console.print(Segments(console.render(table, options)), soft_wrap=True)
    line_written()
