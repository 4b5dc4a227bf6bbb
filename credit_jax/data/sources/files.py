"""The files of a path template with strftime codes, found by time."""

import abc
import bisect
import dataclasses
import itertools
import os
import re
from datetime import datetime
from fnmatch import fnmatch
from glob import glob
from typing import Any

import numpy as np
import pandas as pd

from credit_jax.io.errors import nearest_files
from credit_jax.io.remote import exists, is_url

_DIGITS = {
    "%Y": r"\d{4}",
    "%y": r"\d{2}",
    "%m": r"\d{2}",
    "%d": r"\d{2}",
    "%H": r"\d{2}",
    "%M": r"\d{2}",
    "%S": r"\d{2}",
    "%j": r"\d{3}",
    "%f": r"\d",
}
_CODE = "%[YymdHMSjf]"
_PERIODS = (("%S", "s"), ("%M", "min"), ("%H", "h"), ("%j", "D"), ("%d", "D"))


class Files(abc.ABC):
    """The files of some variables, a template or another name for errors; hashable."""

    template: str
    # Those that are known, in order of time.
    paths: tuple[str, ...] = ()

    @property
    def are_dated(self) -> bool:
        """Whether the name of each file has its day, or says more."""
        return True

    @property
    def first_path(self) -> str:
        """Path of an existing file."""
        return self.paths[0]

    @abc.abstractmethod
    def find(self, time: np.datetime64) -> str | None:
        """Returns the file whose period contains a time, or None."""

    @abc.abstractmethod
    def lacks(self, time: np.datetime64) -> str:
        """The end of an error message: why a time has no file."""

    def available(self, times: np.ndarray) -> np.ndarray:
        """(...) whether samples may have each time; a missing one is an error."""
        return np.ones(times.shape, dtype=bool)


@dataclasses.dataclass(frozen=True)
class FileSet(Files):
    """The files of one path template, in order of time."""

    template: str  # path template of the config
    paths: tuple[str, ...]  # paths of the files
    # (file,) datetime64[ns], first and last time of the period in the name of each
    # file; None for a single file, which has all times.
    first: tuple[np.datetime64, ...] | None = None
    last: tuple[np.datetime64, ...] | None = None

    def find(self, time: np.datetime64) -> str | None:
        if self.first is None or self.last is None:
            return self.paths[0]
        index = bisect.bisect_right(self.first, time) - 1
        if index < 0 or time > self.last[index]:
            return None
        return self.paths[index]

    @property
    def are_dated(self) -> bool:
        periods = zip(self.first or (), self.last or (), strict=True)
        lengths = [last - first for first, last in periods]
        return bool(lengths and max(lengths) < np.timedelta64(1, "D"))

    def lacks(self, time: np.datetime64) -> str:
        text = f"covers {str(time)[:19]}"
        if self.first is None or self.last is None:
            return text
        return (
            f"{text}; {len(self.paths)} files cover {str(self.first[0])[:10]} to "
            f"{str(self.last[-1])[:10]}"
        )


@dataclasses.dataclass(frozen=True)
class TimedFiles(Files):
    """Files of one time each, whose names are a template with strftime codes."""

    template: str  # path template; a code may occur several times
    probe: tuple[np.datetime64, ...]  # times in which to look for the first file
    # Whether samples whose files are missing are left out; else a missing file is an
    # error.
    optional: bool = False

    @property
    def first_path(self) -> str:
        """The file of the first time of `probe` that has one."""
        for time in self.probe:
            path = self.find(time)
            if path is not None:
                return path
        first, last = (str(self.probe[i])[:16] for i in (0, -1))
        raise FileNotFoundError(
            f"no file {self.path(self.probe[0])!r}, and none for the other "
            f"{len(self.probe) - 1} times from {first} to {last}"
        )

    def path(self, time: np.datetime64) -> str:
        """Path of the file of a time, which need not exist."""
        stamp: Any = pd.Timestamp(time)
        return stamp.strftime(self.template)

    def find(self, time: np.datetime64) -> str | None:
        path = self.path(time)
        return path if exists(path) else None

    def lacks(self, time: np.datetime64) -> str:
        return f"is there for {str(time)[:19]}: {self.path(time)!r} does not exist"

    def available(self, times: np.ndarray) -> np.ndarray:
        if not self.optional:
            return super().available(times)
        exists = [self.find(time) is not None for time in times.ravel()]
        return np.array(exists, dtype=bool).reshape(times.shape)


def discover(template: str, origin: str) -> FileSet:
    """Finds the files of a template, in which strftime codes are wildcards."""
    if is_url(template) and not time_format(template):
        return FileSet(template, (template,))
    pattern = _glob_pattern(template)
    paths = sorted(glob(pattern))
    if not paths:
        inside = "" if os.path.isabs(template) else f" in {os.getcwd()}"
        raise FileNotFoundError(
            f"{origin}: no file matches {template!r} (searched {pattern!r}{inside}); "
            f"{nearest_files(pattern)}"
        )
    # A single file has all times, whatever its name.
    if len(paths) == 1:
        return FileSet(template, tuple(paths))
    periods = sorted((*_period(template, path, origin), path) for path in paths)
    for (begin, end, path), (after, _, other) in itertools.pairwise(periods):
        if after <= end:
            raise ValueError(
                f"{origin}: {path} and {other} both match {template!r} and are of one "
                f"period, from {str(begin)[:10]}; expected one file for each: match "
                "fewer files"
            )
    first, last, paths = map(list, zip(*periods, strict=True))
    # Files that are named by a day, with time between all of them, have several days.
    more = [after - end for after, end in zip(first[1:], last[:-1], strict=True)]
    is_by_day = any(code in template for code, _ in _PERIODS)
    if is_by_day and min(more) > np.timedelta64(1, "us"):
        last = [*(after - np.timedelta64(1, "ns") for after in first[1:]), last[-1]]
        last[-1] += min(more) - np.timedelta64(1, "ns")
    return FileSet(template, tuple(paths), tuple(first), tuple(last))


def matches(template: str, path: str) -> bool:
    """Whether a path, which need not exist, matches a template."""
    return fnmatch(path, _glob_pattern(template))


def _glob_pattern(template: str) -> str:
    template = template.replace("[", "[[]")  # wildcards are * and ? alone
    for code in _DIGITS:
        template = template.replace(code, "*")
    return template


def _period(
    template: str, path: str, origin: str
) -> tuple[np.datetime64, np.datetime64]:
    """First and last time of the period in a file's name."""
    codes = list[str]()

    def digits(match: re.Match[str]) -> str:
        code = match[0]
        if code in codes:
            return f"(?P={code[1]})"
        codes.append(code)
        return f"(?P<{code[1]}>{_DIGITS[code]})"

    full = re.sub(_CODE, digits, re.escape(os.path.normpath(template)))
    if not codes:
        raise ValueError(
            f"{origin}: several files match {template!r}, such as {path}, expected the "
            "date of each in its name; write it as %Y, %m, %d, ... in the path"
        )
    full = full.replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    match = re.search(full, os.path.normpath(path))
    if match is None:
        raise ValueError(
            f"{origin}: {path} has no date where the path {template!r} has "
            f"{time_format(template)}; rename the file, or match fewer files"
        )
    values = [match[code[1]] for code in codes]
    begin = datetime.strptime(" ".join(values), " ".join(codes))
    freq = next((freq for code, freq in _PERIODS if code in codes), None)
    period: Any = pd.Period(begin, freq or ("M" if "%m" in codes else "Y"))
    return period.start_time.to_datetime64(), period.end_time.to_datetime64()


def time_format(template: str) -> str:
    """Returns a template from its first to its last strftime code, such as "%Y/%m"."""
    ends = [(m.start(), m.end()) for m in re.finditer(_CODE, template)]
    return template[ends[0][0] : ends[-1][1]] if ends else ""
