"""The `inference:` section: start dates, length, data and output of forecasts."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from credit_jax.config.base import FolderPath, StrictModel, checked_by
from credit_jax.config.data import MAX_TIMES, DataConfig
from credit_jax.config.dates import Date, Timestep
from credit_jax.config.messages import got
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.config.yaml_file import read_yaml

# Accepted names of `group_by` -> the name that credit_jax uses.
GROUPS = {
    **dict.fromkeys(("1d", "d", "day", "daily"), "day"),
    **dict.fromkeys(("1m", "m", "month", "monthly"), "month"),
    **dict.fromkeys(("1y", "y", "year", "yearly"), "year"),
    "full": "full",
}


GroupBy = Annotated[
    Literal["day", "month", "year", "full"],
    BeforeValidator(lambda value: GROUPS.get(str(value).lower().strip(), value)),
]


class BatchForecastConfig(StrictModel):
    """Forecasts from several start dates.

    Attributes:
        forecast_length: length of each forecast ("10d").
        first_init_date, last_init_date: first and last start date, both included.
        init_interval: time between start dates ("12h").
    """

    forecast_length: Timestep
    first_init_date: Date
    last_init_date: Date
    init_interval: Timestep


class SingleForecastConfig(StrictModel):
    """A forecast from one start date.

    Attributes:
        start_datetime: the start date.
        forecast_length: length; by default that of `batch_forecast`, else "10d".
    """

    start_datetime: Date | None = None
    forecast_length: Timestep | None = None

    ignored: ClassVar = {"init_data": "CREDIT reserves it and reads nothing of it"}


class VariableChoice(StrictModel):
    """A variable to write.

    Attributes:
        name: "SOURCE/field_type/3d or 2d/NAME", as postblocks name it.
        levels: levels to write, as in `data.source.*.levels`; null writes all.
    """

    name: str
    levels: tuple[float, ...] | None = None


class EncodingConfig(StrictModel):
    """NetCDF encoding of a variable.

    Attributes:
        dtype: dtype of the values in the file.
        zlib, complevel, shuffle, fletcher32: filters of the netCDF library.
        chunksizes, contiguous: storage layout.
    """

    dtype: Literal["float32", "float64", "float16"] | None = None
    zlib: bool | None = None
    complevel: Annotated[int, Field(ge=0, le=9)] | None = None
    shuffle: bool | None = None
    chunksizes: tuple[int, ...] | None = None
    fletcher32: bool | None = None
    contiguous: bool | None = None


def _check_encoding(value: dict[str, Any]) -> None:
    common = {k: v for k, v in value.items() if not isinstance(v, Mapping)}
    for section in (common, *(v for v in value.values() if isinstance(v, Mapping))):
        EncodingConfig.model_validate(section)


class OutputConfig(StrictModel):
    """The output of forecasts.

    Attributes:
        format: "netcdf" for CREDIT's files, or "zarr" for one store of all forecasts.
        output_interval: only lead times that are multiples of it are written; null
            writes every step.
        group_by: steps that share a NetCDF file: those of a "day", "month" or "year" of
            valid time, or "full" for all; null writes a file for each step.
        variables: variables to write; null writes all.
        metadata: YAML file of CF attributes by variable; a name without a folder is a
            file of this package.
        encoding: NetCDF encoding (`EncodingConfig`) of all variables, and sections for
            single variables by full key or short name.
        max_pending: steps that may wait to be written; null is two per writer.
    """

    format: Annotated[
        Literal["netcdf", "zarr"],
        BeforeValidator(lambda x: x.lower().strip() if isinstance(x, str) else x),
    ] = "netcdf"
    output_interval: Timestep | None = None
    group_by: GroupBy | None = None
    variables: (
        tuple[
            Annotated[
                VariableChoice,
                BeforeValidator(lambda x: {"name": x} if isinstance(x, str) else x),
            ],
            ...,
        ]
        | None
    ) = None
    metadata: str | None = None
    encoding: Annotated[dict[str, Any], checked_by(_check_encoding)] = Field(
        default_factory=dict
    )
    max_pending: Annotated[int, Field(ge=1)] | None = None

    def encoding_of(self, name: str) -> dict[str, Any]:
        """NetCDF encoding of a variable: the common one, updated by its own section."""
        encoding = {
            k: v for k, v in self.encoding.items() if not isinstance(v, Mapping)
        }
        for key, value in self.encoding.items():
            if isinstance(value, Mapping) and name in (key, key.split("/")[-1]):
                encoding |= value
        if encoding.get("chunksizes") is not None:
            # HDF5 takes no list, which is what YAML has.
            encoding["chunksizes"] = tuple(encoding["chunksizes"])
        # Default of the netCDF library, with which CREDIT writes.
        return {"shuffle": True, **encoding} if encoding.get("zlib") else encoding


class InferenceDataConfig(DataConfig):
    """A data section for forecasts, which needs no dates: start dates define them."""

    forecast_len: int = Field(default=1, ge=1, le=MAX_TIMES)

    needs_dates: ClassVar = False


class InferenceConfig(StrictModel):
    """Forecasts of a trained model.

    Attributes:
        run_mode: "batch" for `batch_forecast`, "single" for `single_forecast`.
        save_forecast: folder of the forecasts.
        batch_forecast, single_forecast: start dates and length.
        data, preblocks, postblocks: each replaces the whole section of that name.
        output: see `OutputConfig`.
        members: ensemble members of every forecast; CREDIT has no such key.
        perturbation: `type` and the keys of what perturbs the initial states of all
            members but the first; CREDIT has no such key.
    """

    run_mode: Literal["batch", "single"] = "batch"
    save_forecast: FolderPath | None = None
    batch_forecast: BatchForecastConfig | None = None
    single_forecast: SingleForecastConfig | None = None
    data: InferenceDataConfig | None = None
    preblocks: PreblocksConfig | None = None
    postblocks: PostblocksConfig | None = None
    output: OutputConfig = OutputConfig()
    members: int = Field(default=1, ge=1)
    perturbation: dict[str, Any] = Field(default_factory=dict)

    ignored: ClassVar = {"mode": "the forecast command has --parallelism"}


def read_attributes(path: str | None) -> dict[str, dict[str, Any]]:
    """CF attributes by variable."""
    if not path:
        return {}
    file = find_attributes(path)
    attributes = {name: entry or {} for name, entry in read_yaml(file).items()}
    for name, entry in attributes.items():
        if not isinstance(entry, Mapping):
            raise ValueError(
                f"inference.output.metadata: {file}: {name}: expected attributes, got "
                f"{got(entry)}"
            )
        for key, value in entry.items():
            values = value if isinstance(value, list) else [value]
            if not all(type(x) in (str, int, float) for x in values):
                raise ValueError(
                    f"inference.output.metadata: {file}: {name}: {key}: an attribute "
                    f"of a file is text, a number or a list of these, got {got(value)}"
                )
    return {name: dict(entry) for name, entry in attributes.items()}


def find_attributes(path: str) -> Path:
    """The YAML file of CF attributes; a bare file name is one of the package."""
    file = Path(os.path.expandvars(path))
    if file.parent == Path("."):
        folder = Path(__file__).parent / "metadata"
        file = folder / file
        # Differs from CREDIT: an error instead of a warning.
        if not file.is_file():
            available = ", ".join(sorted(entry.name for entry in folder.glob("*.yaml")))
            raise ValueError(
                f"inference.output.metadata: no file {path!r} comes with the package; "
                f"there are: {available}"
            )
    if not file.is_file():
        unset = "; its environment variable is not set" if "$" in str(file) else ""
        raise ValueError(f"inference.output.metadata: {file} does not exist{unset}")
    return file
