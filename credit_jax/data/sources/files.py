"""The files of a path template with strftime codes, found by time."""

import abc
import bisect
import dataclasses
import os
import re
from datetime import datetime
from fnmatch import fnmatch
from glob import glob
from typing import Any

import numpy as np
import pandas as pd

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
_PERIODS = (("%S", "s"), ("%M", "min"), ("%H", "h"), ("%j", "D"), ("%d", "D"))


class Files(abc.ABC):
    """The files of some variables; hashable.

    Attributes:
        template: as the config has it, or what stands for it in errors.
    """

    template: str

    @property
    @abc.abstractmethod
    def first_path(self) -> str:
        """A file that is there."""

    @property
    def ends(self) -> tuple[str, ...]:
        """The first and the last file, if they are known without a time."""
        return ()

    @property
    def count(self) -> int:
        """How many files are known without a time."""
        return len(self.ends)

    @abc.abstractmethod
    def find(self, time: np.datetime64) -> str | None:
        """The file whose period holds a time, or None."""

    @abc.abstractmethod
    def lacks(self, time: np.datetime64) -> str:
        """Why there is no file of a time: the end of a sentence."""

    def available(self, times: np.ndarray) -> np.ndarray:
        """(...) whether samples may need each time; by default, all of them."""
        return np.ones(times.shape, dtype=bool)


@dataclasses.dataclass(frozen=True)
class FileSet(Files):
    """The files of one path template, in order of time.

    Attributes:
        template: as the config has it.
        paths: the files.
        first, last: (file,) datetime64[ns] that each file may hold, from its name;
            None for a single file, which holds all times.
    """

    template: str
    paths: tuple[str, ...]
    first: tuple[np.datetime64, ...] | None = None
    last: tuple[np.datetime64, ...] | None = None

    def find(self, time: np.datetime64) -> str | None:
        """The file whose period holds a time, or None."""
        if self.first is None or self.last is None:
            return self.paths[0]
        index = bisect.bisect_right(self.first, time) - 1
        if index < 0 or time > self.last[index]:
            return None
        return self.paths[index]

    @property
    def first_path(self) -> str:
        """The first file."""
        return self.paths[0]

    @property
    def ends(self) -> tuple[str, ...]:
        """The first and the last file."""
        return self.paths[0], self.paths[-1]

    @property
    def count(self) -> int:
        """How many files there are."""
        return len(self.paths)

    def lacks(self, time: np.datetime64) -> str:
        """Why there is no file of a time: the end of a sentence."""
        text = f"covers {str(time)[:19]}"
        if self.first is None or self.last is None:
            return text
        return (
            f"{text}; {len(self.paths)} files cover {str(self.first[0])[:10]} to "
            f"{str(self.last[-1])[:10]}"
        )


@dataclasses.dataclass(frozen=True)
class TimedFiles(Files):
    """Files of one time each, whose names are a template with strftime codes.

    Attributes:
        template: of a path; a code may occur several times.
        probe: times of which one has a file, which is then the first file.
        optional: samples whose files are missing are left out; else that is an error.
    """

    template: str
    probe: tuple[np.datetime64, ...]
    optional: bool = False

    @property
    def first_path(self) -> str:
        """The file of the first time that has one."""
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
        """The file that a time should have."""
        stamp: Any = pd.Timestamp(time)
        return stamp.strftime(self.template)

    def find(self, time: np.datetime64) -> str | None:
        """The file of a time, or None."""
        path = self.path(time)
        return path if exists(path) else None

    def lacks(self, time: np.datetime64) -> str:
        """Why there is no file of a time: the end of a sentence."""
        return f"is there for {str(time)[:19]}: {self.path(time)!r} does not exist"

    def available(self, times: np.ndarray) -> np.ndarray:
        """Whether each time has a file; all of them if none may be missing."""
        if not self.optional:
            return np.ones(times.shape, dtype=bool)
        found = [self.find(time) is not None for time in times.ravel()]
        return np.array(found, dtype=bool).reshape(times.shape)


def discover(template: str, where: str) -> FileSet:
    """Find the files of a template, in which strftime codes are wildcards.

    A single file holds all times, whatever its name. Of several, the codes in the name
    of each give its period: a year, month, day, hour, minute or second.

    Args:
        template: path such as "data/era5_%Y.zarr", wildcards * and ? included, or
            the address of one Zarr store.
        where: dotted path of the config key, for errors.

    Raises:
        FileNotFoundError: if there is none, naming the pattern and what is there.
        ValueError: if a file's name does not hold the date.
    """
    if is_url(template) and not time_format(template):
        return FileSet(template, (template,))
    pattern = _glob_pattern(template)
    paths = sorted(glob(pattern))
    if not paths:
        raise FileNotFoundError(_nothing_found(template, pattern, where))
    if len(paths) == 1:
        return FileSet(template, tuple(paths))
    found = sorted((*_period(template, path, where), path) for path in paths)
    first, last, paths = zip(*found, strict=True)
    return FileSet(template, paths, first, last)


def matches(template: str, path: str) -> bool:
    """Whether a path, which need not exist, is one of a template.

    >>> matches("data/era5_%Y.zarr", "data/era5_1999.zarr")
    True
    """
    return fnmatch(path, _glob_pattern(template))


def _glob_pattern(template: str) -> str:
    for code in _DIGITS:
        template = template.replace(code, "*")
    return template


def _period(
    template: str, path: str, where: str
) -> tuple[np.datetime64, np.datetime64]:
    """First and last time of the period that a file's name gives."""
    codes = time_format(template)
    date = re.escape(codes)
    for code, digits in _DIGITS.items():
        date = date.replace(re.escape(code), digits)
    whole = re.escape(template).replace(re.escape(codes), f"(?P<date>{date})")
    whole = whole.replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    match = re.search(whole, path) if codes else None
    if match is None:
        raise ValueError(
            f"{where}: {path} has no date where the path {template!r} has "
            f"{codes or 'no strftime code'}; more than one file matches, so each name "
            "must hold its date (%Y, %m, %d, ...)"
        )
    begin = datetime.strptime(match["date"], codes)
    freq = next((freq for code, freq in _PERIODS if code in codes), None)
    period: Any = pd.Period(begin, freq or ("M" if "%m" in codes else "Y"))
    return period.start_time.to_datetime64(), period.end_time.to_datetime64()


def time_format(template: str) -> str:
    """The part of a template from its first strftime code to its last one.

    >>> time_format("data/%Y/%m/era5_*.nc")
    '%Y/%m'
    """
    ends = [(m.start(), m.end()) for m in re.finditer("%[YymdHMSjf]", template)]
    return template[ends[0][0] : ends[-1][1]] if ends else ""


def _nothing_found(template: str, pattern: str, where: str) -> str:
    """The text of the error: pattern, the deepest folder there is, what is in it."""
    text = f"{where}: no file matches {template!r} (searched {pattern!r}"
    text += f" in {os.getcwd()})" if not os.path.isabs(template) else ")"
    folder = os.path.dirname(template)
    while folder and ("%" in folder or "*" in folder or not os.path.isdir(folder)):
        folder = os.path.dirname(folder) if folder != os.path.dirname(folder) else ""
    there = sorted(os.listdir(folder or "."))
    shown = ", ".join(there[:8]) + (", ..." if len(there) > 8 else "")
    wanted = os.path.dirname(template) or "."
    if "%" not in wanted and "*" not in wanted and not os.path.isdir(wanted):
        text += f"; the folder {wanted!r} does not exist"
    return text + f"; {folder or '.'!r} holds: {shown or 'nothing'}"
