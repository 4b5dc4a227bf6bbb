"""The whole config, and the consistency checks between its sections."""

from collections.abc import Iterator
from datetime import date, timedelta
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from credit_jax.config.assimilation import AssimilationConfig, OptimizeConfig
from credit_jax.config.base import FolderPath, StrictModel, checked_by, parse
from credit_jax.config.credit_keys import IGNORED_TOP
from credit_jax.config.custom_objects import CustomObject
from credit_jax.config.data import DataConfig, ValidationDataConfig, num_samples
from credit_jax.config.dates import duration
from credit_jax.config.inference import InferenceConfig
from credit_jax.config.loss import LossConfig, MetricsConfig
from credit_jax.config.messages import got
from credit_jax.config.schedules import PlateauConfig
from credit_jax.config.sources.source import FIELD_TYPES, MAIN_INPUT
from credit_jax.config.trainer import TrainerConfig
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig


class ForcingConfig(StrictModel):
    """The forcing of the demo climate; the defaults are those of its base climate.

    Attributes:
        equator_to_pole: difference of the equilibrium temperature between equator and
            pole in K, 60 in Held and Suarez (1994).
        season: shift of the warmest sin(latitude) per sin(declination).
        land_heating: equilibrium temperature of land at sigma 1 with the sun in the
            zenith, minus that at night, in K.
    """

    equator_to_pole: float = Field(default=60.0, ge=0, le=120)
    season: float = Field(default=0.1, ge=0, le=1)
    land_heating: float = Field(default=40.0, ge=0, le=100)


class DemoConfig(StrictModel):
    """The data set that `python -m credit_jax.demo` generates.

    Attributes:
        out: folder of the data set; it is created if it does not exist.
        truncation: "T21" is a grid of 32 x 64 points, "T42" one of 64 x 128.
        days: length of the data set in days, from 2000-01-01.
        spinup_days: days that are computed before it and discarded; for T21, 200 days,
            seed 0 and the default forcing the state after them comes with the package.
        held_out_days: last days, which the mean and std files exclude.
        seed: seed of the initial state.
        forcing: forcing of the climate; another one makes another climate.
    """

    out: FolderPath
    truncation: Literal["T21", "T42"] = "T21"
    days: int = Field(default=560, ge=2)
    spinup_days: int = Field(default=200, ge=0)
    held_out_days: int = Field(default=60, ge=0)
    seed: int = Field(default=0, ge=0)
    forcing: ForcingConfig = ForcingConfig()

    @property
    def files(self) -> list[str]:
        """Paths of the files that are made."""
        last = date(2000, 1, 1) + timedelta(days=self.days - 1)
        names = [f"demo_{year}.zarr" for year in range(2000, last.year + 1)]
        names += ["static.nc", "mean.nc", "std.nc"]
        return [f"{self.out}/{name}" for name in names]

    def conflicts(self) -> Iterator[str]:
        if self.held_out_days >= self.days:
            yield (
                f"held_out_days {self.held_out_days} of days {self.days} leave no day "
                "for training"
            )


def _check_type(model: dict[str, Any]) -> None:
    if not isinstance(kind := model.get("type"), str):
        raise ValueError(f"needs type, the name of a model, got {got(kind)}")


class Config(StrictModel):
    """The config of a run: CREDIT's gen2 YAML.

    Attributes:
        save_loc: folder for all files that a run writes.
        seed: seed of the initial weights, the order of the samples, and dropout.
        data: see `DataConfig`.
        validation_overrides: the `validation_data` section, without defaults from
            `data`.
        preblocks, postblocks: see `credit_jax.config.transforms`.
        model: `type` and the arguments of that model; see `credit_jax.models.registry`.
        loss: see `LossConfig`.
        metrics: see `MetricsConfig`; null is the default set of metrics.
        trainer: see `TrainerConfig`.
        demo: a data set to make before the first training (`DemoConfig`); CREDIT has no
            such section and ignores it.
        optimize_ic: how `credit-jax optimize-ic` fits an initial state
            (`OptimizeConfig`); training ignores it.
        assimilation: what `credit-jax assimilate` does (`AssimilationConfig`); training
            ignores it.
        custom_objects: losses, metrics, blocks, sources and models of the user's own,
            see `credit_jax.config.custom_objects`.
        inference_section: the `inference` section before validation, for forecasts;
            training does not read it.

    >>> config = credit_jax.load_config("RUN/model.yml")
    >>> config.data.timestep, config.trainer.use_ema
    ('6h', True)
    """

    save_loc: FolderPath
    seed: int = 42
    data: DataConfig
    validation_overrides: ValidationDataConfig = Field(
        ValidationDataConfig(), alias="validation_data"
    )
    preblocks: PreblocksConfig = PreblocksConfig()
    postblocks: PostblocksConfig = PostblocksConfig()
    model: Annotated[dict[str, Any], checked_by(_check_type)]
    loss: LossConfig
    metrics: MetricsConfig | None = None
    trainer: TrainerConfig
    demo: DemoConfig | None = None
    optimize_ic: OptimizeConfig | None = None
    assimilation: AssimilationConfig | None = None
    custom_objects: dict[str, CustomObject] = Field(default_factory=dict)
    inference_section: dict[str, Any] | None = Field(None, alias="inference")

    passes_over: ClassVar = True
    ignored: ClassVar = IGNORED_TOP

    _written: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def validation_data(self) -> DataConfig:
        """The data section for validation: `data`, overridden by `validation_data`."""
        return self.validation_overrides.over(self.data)

    @cached_property
    def inference(self) -> InferenceConfig | None:
        """The validated `inference` section; None if there is none.

        It is validated at the first access, since training ignores it, as in CREDIT.

        Raises:
            ConfigError: the section has problems.
        """
        if self.inference_section is None:
            return None
        return parse(InferenceConfig, self.inference_section, "inference")

    @property
    def backprop_on_timestep(self) -> tuple[int, ...]:
        """Steps of a training forecast whose losses are minimized, from 1, sorted."""
        chosen = self.trainer.backprop_on_timestep or self.data.backprop_on_timestep
        steps = range(1, self.data.forecast_len + 1)
        return tuple(step for step in steps if not chosen or step in chosen)

    def without_effect(self) -> dict[str, str]:
        """Steps that the forecast does not have, which CREDIT passes over, too."""
        last = self.data.forecast_len
        notes = {}
        for name in ("trainer", "data"):
            chosen = getattr(self, name).backprop_on_timestep or ()
            beyond = [step for step in chosen if step > last]
            if beyond and self.backprop_on_timestep:
                listed = ", ".join(map(str, beyond))
                notes[f"{name}.backprop_on_timestep"] = (
                    f"of steps {listed}: data.forecast_len is {last}"
                )
        return notes

    @property
    def stages(self) -> tuple["Config", ...]:
        """The config of each stage of `trainer.curriculum`; () without one.

        They validate as the whole run does.
        """
        valid = {"forecast_len": self.validation_data.forecast_len}
        trainer = self.trainer.model_copy(update={"curriculum": ()})
        overrides = self.validation_overrides.model_copy(update=valid)
        changes: dict[str, Any] = {
            "trainer": trainer,
            "validation_overrides": overrides,
        }
        configs: list[Config] = [self.model_copy(update=changes)]
        for stage in self.trainer.curriculum:
            # What a stage does not set stays as in the stage before it.
            last = configs[-1]
            trained = stage.changes(*TrainerConfig.model_fields)
            by_plateau = isinstance(last.trainer.scheduler, PlateauConfig)
            if stage.scheduler is not None:
                trained["use_scheduler"] = True
            elif stage.learning_rate is not None and not by_plateau:
                trained |= {"use_scheduler": False, "scheduler": None}
            changes = {
                "trainer": last.trainer.model_copy(update=trained),
                "data": last.data.model_copy(update=stage.changes("forecast_len")),
            }
            if stage.loss is not None:
                keys = stage.loss.model_fields_set
                changed = {key: getattr(stage.loss, key) for key in keys}
                changes["loss"] = last.loss.model_copy(update=changed)
            configs.append(last.model_copy(update=changes))
        return tuple(configs[1:])

    @property
    def num_members(self) -> int:
        """Ensemble members of each sample on one data-parallel rank, in training."""
        one_each = self.loss.members_are_ranks
        return 1 if one_each else self.trainer.ensemble_size

    @property
    def shares_batches(self) -> bool:
        """Whether all data-parallel ranks train on the same samples.

        They do if the loss scores an ensemble, since ranks then have different members.
        """
        return "crps" in self.loss.name.casefold() and self.trainer.ensemble_size > 1


def section_conflicts(config: Config, *, training: bool = True) -> list[str]:
    """Conflicts between valid sections, one line each that begins with a dotted key."""
    problems = []
    if "$" in config.save_loc:
        problems.append(
            f"save_loc: {config.save_loc!r} holds an environment variable that is not "
            "set; set it, or write the path"
        )
    problems += _source_problems("data", config.data)
    if not training:
        return problems
    problems += _step_problems(config)
    window = config.trainer.shuffle.window
    if window is not None and duration(window) < 2 * config.data.time_step:
        problems.append(
            f"trainer.shuffle.window: {window} is shorter than two time steps "
            f"(data.timestep {config.data.timestep}), which leaves nothing to permute; "
            "use some days, or leave the section out"
        )
    problems += _date_problems("data", config.data, config.trainer.train_batch_size)
    for index, stage in enumerate(config.stages):
        lines = _source_problems("data", stage.data) + _step_problems(stage)
        lines += _date_problems("data", stage.data, stage.trainer.train_batch_size)
        if stage.loss.learns != config.loss.learns:
            lines.append(
                "loss.args.var_weighting: learnable has parameters that are trained in "
                "the whole run, not in some stages; take it in all stages or in none"
            )
        path = f"trainer.curriculum.{index}"
        problems += [f"{path}: {line}" for line in lines if line not in problems]
    if config.trainer.skip_validation:
        metric = config.trainer.training_metric
        if metric.startswith("valid"):
            problems.append(
                f"trainer.training_metric: {metric!r} needs a validation, but "
                "trainer.skip_validation is true; use 'train_loss'"
            )
        return problems
    valid = config.validation_data
    if config.validation_overrides.source is not None:
        problems += _source_problems("validation_data", valid)
    if valid != config.data:
        size = config.trainer.valid_batch_size
        problems += _date_problems("validation_data", valid, size)
        problems += [
            f"validation_data.{key}: {getattr(valid, key)} differs from data.{key} "
            f"{getattr(config.data, key)}; the model is the same, give one value"
            for key in ("history_len", "timestep")
            if getattr(valid, key) != getattr(config.data, key)
        ]
    return problems


def _source_problems(path: str, data: DataConfig) -> list[str]:
    problems = []
    for name, source in data.source.items():
        origin = f"{path}.source.{name}"
        keys = ("history_len", "forecast_len")[source.input != MAIN_INPUT :]
        for key in keys:
            value, common = getattr(source, key), getattr(data, key)
            if value not in (None, common):
                problems.append(
                    f"{origin}.{key}: {value} differs from {path}.{key} {common}; all "
                    "sources must have the same times"
                )
        seen: dict[str, str] = {}
        for kind in FIELD_TYPES:
            field = getattr(source.variables, kind)
            for variable in field.vars_3D + field.vars_2D if field else ():
                if variable in seen:
                    problems.append(
                        f"{origin}.variables.{kind}: {variable} is already in "
                        f"{seen[variable]}; a variable has one field type, name it once"
                    )
                seen.setdefault(variable, kind)
    return problems


def _step_problems(config: Config) -> list[str]:
    """Checks what is said of steps against the steps of the forecast."""
    last, problems = config.data.forecast_len, []
    weights = config.loss.step_weights(last)
    if weights is not None and len(weights) != last:
        problems.append(
            f"loss.lead_weights: got {list(weights)}, but data.forecast_len is {last}; "
            "give one weight for each step, or a number, the factor from step to step"
        )
    elif weights is not None and not any(
        weights[step - 1] for step in config.backprop_on_timestep
    ):
        problems.append(
            f"loss.lead_weights: got {list(weights)}, which leave no loss of the steps "
            f"that count, {list(config.backprop_on_timestep)}; give one a weight"
        )
    if config.backprop_on_timestep:
        return problems
    key = "trainer" if config.trainer.backprop_on_timestep else "data"
    chosen = getattr(config, key).backprop_on_timestep
    return [
        f"{key}.backprop_on_timestep: got {list(chosen)}, but data.forecast_len is "
        f"{last}; take steps from 1 to {last}"
    ]


def _date_problems(path: str, data: DataConfig, batch_size: int) -> list[str]:
    count = num_samples(data)
    when = ", ".join(f"{first} to {last}" for first, last in data.ranges)
    if count < 1:
        return [
            f"{path}: no sample fits into {when}: history_len {data.history_len} + "
            f"forecast_len {data.forecast_len} times, {data.timestep} apart, are "
            "needed; widen the dates"
        ]
    if count < batch_size:
        return [
            f"{path}: {count} samples in {when} do not fill one batch of {batch_size}; "
            "widen the dates or take a smaller batch"
        ]
    return []
