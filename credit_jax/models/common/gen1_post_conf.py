"""`model.gen1_post_conf`: the corrections with which CREDIT's first generation trains.

gen1 corrects the output of a model inside of its forward pass; gen2's training ignores
the same section. `credit-jax config --to jax` converts gen1's `post_conf` to this
section, with the keys of gen1's `data` section that its blocks read.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from pydantic import Field, PositiveInt

from credit_jax.config import StrictModel
from credit_jax.models.common.post_conf import Names, PostConf, build_channel_fixers
from credit_jax.named_fields.coordinates import (
    CoordinateValues,
    GridCoordinates,
    Kind,
    are_numbered_alike,
    places_of,
)
from credit_jax.physics.channel_fixers import ChannelFixers, ChannelUnits
from credit_jax.physics.files import level_values, read_arrays

# Blocks that read the file with the grid.
_ON_GRID = (
    "global_mass_fixer",
    "global_water_fixer",
    "global_energy_fixer",
    "global_energy_fixer_updown",
)


class PostConfData(StrictModel):
    """The keys of gen1's `data` section that the blocks read.

    Attributes:
        variables: names of the output variables on levels, in channel order.
        surface_variables, diagnostic_variables: names of the output variables without
            levels, in channel order.
        levels: number of levels of each of `variables`.
        lead_time_periods: hours of a step.
        save_loc_physics: file with the grid; not needed by tracer_fixer.
        mean_path, std_path: files with the mean and standard deviation of every
            variable (`scaler_type: std_new`); None for data that are normalized on
            disk, which the blocks use unchanged.
    """

    variables: Names
    surface_variables: Names = ()
    diagnostic_variables: Names = ()
    levels: PositiveInt
    lead_time_periods: PositiveInt
    save_loc_physics: str | None = None
    mean_path: str | None = None
    std_path: str | None = None

    @property
    def by_variable(self) -> dict[str, int]:
        """Number of channels of each variable, in channel order."""
        flat = (*self.surface_variables, *self.diagnostic_variables)
        return dict.fromkeys(self.variables, self.levels) | dict.fromkeys(flat, 1)

    @property
    def by_channel(self) -> tuple[str, ...]:
        """Variable name of every channel."""
        pairs = self.by_variable.items()
        return tuple(name for name, count in pairs for _ in range(count))

    def units(self) -> ChannelUnits:
        """Returns mean and standard deviation of every channel; 0 and 1 without files.

        Raises:
            OSError: a file cannot be read.
            ValueError: a variable is missing, or has too few levels.
        """
        if self.mean_path is None or self.std_path is None:
            count = len(self.by_channel)
            return ChannelUnits(np.zeros(count), np.ones(count))
        both = [self._by_channel(path) for path in (self.mean_path, self.std_path)]
        return ChannelUnits(*both)

    def _by_channel(self, path: str) -> np.ndarray:
        arrays = read_arrays(path, list(self.by_variable))
        parts = []
        for (name, count), array in zip(self.by_variable.items(), arrays, strict=True):
            if array.size < count:
                raise ValueError(
                    f"{path}: {name} has {array.size} values, expected {count}, one a "
                    "level of gen1_post_conf.data.levels"
                )
            parts.append(array.reshape(-1)[:count])
        return np.concatenate(parts)


class Gen1PostConf(PostConf):
    """gen1's `post_conf`, applied at the end of the forward pass.

    Attributes:
        activate: whether it is applied.
        data: the keys of gen1's `data` section that the blocks read.
    """

    activate: bool = True
    data: PostConfData = Field(default=...)

    @property
    def on_grid(self) -> bool:
        """Whether an active block reads `data.save_loc_physics`."""
        return any(getattr(self, name).activate for name in _ON_GRID)

    @property
    def files(self) -> dict[str, str]:
        """Paths of the files that the active blocks read, by key."""
        if not self.activate:
            return {}
        keys = ["save_loc_physics"] if self.on_grid else []
        keys += ["mean_path", "std_path"]
        named = {key: getattr(self.data, key) for key in keys}
        return {f"data.{key}": path for key, path in named.items() if path}

    @cached_property
    def fixers(self) -> ChannelFixers:
        """The active blocks; their files are read on first use.

        Raises:
            OSError: see `build_channel_fixers`.
            ValueError: see `build_channel_fixers`.
        """
        data = self.data
        return build_channel_fixers(
            self,
            data.by_channel,
            data.units(),
            save_loc_physics=data.save_loc_physics or "",
            lead_time_periods=data.lead_time_periods,
        )

    def check_grid(self, grid: tuple[int, int]) -> None:
        """Checks the grid of `data.save_loc_physics` against that of the model.

        Args:
            grid: number of latitudes and of longitudes of the model.

        Raises:
            OSError: a file cannot be read.
            ValueError: the grid or the variables of a file do not fit.
        """
        for of_fixer in self.fixers.grids:
            shape = of_fixer.weights.shape
            if shape != grid:
                shapes = [" x ".join(map(str, s)) for s in (shape, grid)]
                raise ValueError(
                    f"model.gen1_post_conf.data.save_loc_physics: "
                    f"{self.data.save_loc_physics} has a grid of {shapes[0]} points, "
                    f"the model has {shapes[1]}; give the file of the model's grid"
                )

    def check_coordinates(self, data: GridCoordinates) -> None:
        """Checks that the files of the active blocks have the data's coordinates.

        Args:
            data: latitudes, longitudes and levels of the output.

        Raises:
            OSError: a file cannot be read.
            ValueError: rows, columns or levels differ, or are in another order.
        """
        conf, where = self.data, "model.gen1_post_conf.data"
        pairs: list[
            tuple[str, Kind, CoordinateValues | None, CoordinateValues | None]
        ] = []
        file = f"{where}.save_loc_physics: {conf.save_loc_physics}"
        for grid in self.fixers.grids:
            axes, numbers = grid.axes, grid.levels.numbers
            pairs.append((file, "latitude", data.latitude, axes.latitude))
            pairs.append((file, "longitude", data.longitude, axes.longitude))
            pairs.append((file, "level", data.levels, axes.levels))
            if are_numbered_alike(data.levels, numbers):
                pairs.append((file, "level", data.levels, numbers))
        for key, path in (("mean_path", conf.mean_path), ("std_path", conf.std_path)):
            for name in conf.variables if path else ():
                values = level_values(str(path), name)
                values = None if values is None else values[: conf.levels]
                pairs.append((f"{where}.{key}: {path}", "level", data.levels, values))
        for file, kind, ours, theirs in pairs:
            if places_of(ours, theirs, kind, file, data.where) is not None:
                raise ValueError(
                    f"{file}: its {kind}s {list(theirs or ())[:4]} ... are in another "
                    f"order than {list(ours or ())[:4]} ... of {data.where}; bring the "
                    "file to that order"
                )

    def problems(self, num_channels: int, frames: int) -> list[str]:
        """Returns errors of the section for a model, one line each.

        Args:
            num_channels: number of channels of the model's output.
            frames: number of frames of the model's output.
        """
        where, problems = "model.gen1_post_conf", []
        sums = " + ".join(f"{n} {count}" for n, count in self.data.by_variable.items())
        if len(self.data.by_channel) != num_channels:
            problems.append(
                f"{where}.data: its variables have {len(self.data.by_channel)} "
                f"channels ({sums}), the model's output has {num_channels}; name all "
                "variables of the output, in channel order"
            )
        if self.on_grid and self.data.save_loc_physics is None:
            problems.append(
                f"{where}.data.save_loc_physics: missing; the global fixers read the "
                "grid from this file"
            )
        if frames > 1:
            problems.append(
                f"{where}: output_frames is {frames}; the fixers take one output time"
            )
        if (self.data.mean_path is None) != (self.data.std_path is None):
            problems.append(
                f"{where}.data: needs both mean_path and std_path, or neither"
            )
        return problems
