"""By what losses and metrics weigh rows and variables: latitudes, variances of files.

A plan that opens no data (`credit-jax check --no-data`) builds losses and metrics, too,
to check their sections. Where it reads no file, or a file has a problem, which is
reported once, a stand-in takes the place of the values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float

from credit_jax.config import Config
from credit_jax.data import Loader
from credit_jax.io.errors import errors_of
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields import target_variances
from credit_jax.named_fields.axes import horizontal
from credit_jax.named_fields.coordinates import places_of, take_places
from credit_jax.plan.files import latitude_files
from credit_jax.plan.findings import Findings

Latitude = Float[np.ndarray, " lat"]
# Sections that weigh rows and variables.
WeightedSection = Literal["loss", "metrics"]
# A section is built with these latitudes, but never run, where no file is read.
_STAND_IN = np.zeros(1)


@dataclass(frozen=True)
class WeightFiles:
    """Reads the files by which losses and metrics weigh rows and variables.

    Attributes:
        num_rows: rows of the model, to compare with; None skips the comparison.
        open_files: cache of open files; None reads no file.
        loader: loader of the training data, for a section that names no file; None if
            no data is open.
    """

    num_rows: int | None
    open_files: OpenFiles | None
    loader: Loader | None

    def latitude(
        self, config: Config, section: WeightedSection, findings: Findings
    ) -> Latitude | None:
        """Returns the latitudes of all rows for a section that weighs rows by area.

        Args:
            config: the whole config.
            section: the section.
            findings: receives the problem of a file that cannot be read, or whose
                number of rows is not the model's.

        Returns:
            (lat,) degrees north; None if the section does not weigh rows. If no file
            can be read, a stand-in of one row, with which the section is checked.
        """
        key, is_needed = "metrics.args.latitude_weights", False
        if section == "loss":
            (key, _), is_needed = config.loss.latitude_file, config.loss.needs_latitude
        elif config.metrics is not None:
            is_needed = bool(config.metrics.args.get("use_latitude_weights"))
        if not is_needed:
            return None
        rows = None
        with findings.collecting():
            rows = self._latitude(key, latitude_files(config).get(key))
        return _STAND_IN if rows is None else rows

    def _latitude(self, key: str, path: str | None) -> Latitude | None:
        """Returns the latitudes; None if the file is missing, or no file is read.

        Raises:
            ValueError: as `read_latitude`, or the rows are not those of the data, or
                not as many as the model's.
        """
        if path and self.open_files is not None and Path(path).exists():
            latitude = read_latitude(path, key, self.open_files)
        elif self.loader is not None and not path:
            latitude = self.loader.latitude
        else:
            return None
        if self.num_rows not in (None, len(latitude)):
            raise ValueError(
                f"{key}: {path or 'the data'} has {len(latitude)} latitudes, expected "
                f"model.image_height {self.num_rows}"
            )
        if not path or self.loader is None:
            return latitude
        # A file may have the rows of the data in another order.
        rows, where = self.loader.coordinates(), f"{key}: {path}"
        places = places_of(rows.latitude, latitude, "latitude", where, rows.where)
        return take_places(latitude, places, 0)

    def variance_reader(
        self, section: WeightedSection, channels: Mapping[str, int], findings: Findings
    ) -> Callable[[str], dict[str, float]]:
        """Returns a function that reads the variances of a scaler file.

        It returns variances by variable key: none if there is no such file, which
        `find_missing` reports. It raises ValueError as `target_variances` does.

        Args:
            section: section that names the file.
            channels: number of channels of each target variable by key.
            findings: receives a note on variables that have no variance in the file.
        """

        def read(path: str) -> dict[str, float]:
            if self.open_files is None or not Path(os.path.expandvars(path)).exists():
                return {}
            variances = target_variances(path)
            missing = [key for key in channels if key not in variances]
            if missing:
                findings.notes.append(
                    f"{section}.args.scaler_path: {path} has no variance of "
                    f"{', '.join(missing)}, weighed as if it were 1, as in CREDIT; it "
                    f"has: {', '.join(variances) or 'none'}"
                )
            return variances

        return read

    def tendencies(
        self, config: Config, channels: Mapping[str, int]
    ) -> dict[str, list[float]]:
        """Returns the variances of tendencies that `preprocess` fits, by variable key.

        Args:
            config: the whole config.
            channels: number of channels of each target variable by key.

        Returns:
            The variances; none if the loss does not weigh by them, there is no such
            file, which `find_missing` reports, or no file is read.

        Raises:
            ValueError: it is no such file, or of other variables.
        """
        named = config.loss.tendency_weights
        if named is None or self.open_files is None:
            return {}
        path = Path(os.path.expandvars(named))
        return _tendencies(path, named, channels) if path.exists() else {}


def _tendencies(
    path: Path, named: str, channels: Mapping[str, int]
) -> dict[str, list[float]]:
    where = f"loss.tendency_weights: {named}"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        read = {key: [float(v) for v in variances] for key, variances in values.items()}
    except (ValueError, TypeError, AttributeError) as error:
        text = f"{where} is no file of tendencies that preprocess writes ({error})"
        raise ValueError(text) from error
    fit = all(len(v) == channels.get(key) and min(v) > 0 for key, v in read.items())
    if not fit or not read:
        raise ValueError(
            f"{where} has the variances of other variables or levels: "
            f"{ {key: len(v) for key, v in read.items()} }, the targets have "
            f"{dict(channels)}; fit it anew: credit-jax preprocess --overwrite"
        )
    return read


def read_latitude(
    path: str | Path, key: str, open_files: OpenFiles
) -> Float[np.ndarray, " lat"]:
    """Reads the `latitude` coordinate of a NetCDF or Zarr file.

    Args:
        path: path of the file; environment variables are expanded.
        key: dotted config key of the path, for errors.
        open_files: cache of open files.

    Returns:
        (lat,) degrees north.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be opened, or has no one-dimensional latitude
            coordinate.
    """
    place = Path(os.path.expandvars(str(path)))
    if not place.exists():
        raise FileNotFoundError(
            f"{key}: {place} does not exist; it must be a NetCDF or Zarr file with a "
            "`latitude` coordinate, such as the static fields"
        )
    with errors_of(key):
        dataset = open_files.dataset(place)
        latitude, _ = horizontal(dataset, str(place))
    if latitude is not None:
        return np.asarray(latitude.values, np.float64)
    variables = sorted(map(str, dataset.variables))
    raise ValueError(
        f"{key}: {place} has no one-dimensional `latitude`; it has {variables}"
    )
