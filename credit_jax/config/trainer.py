"""The `trainer:` section: parallelism, optimizer, schedule, epochs, checkpoints."""

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat

from credit_jax.config.base import StrictModel, checked_by, not_available
from credit_jax.config.components import Registry
from credit_jax.config.credit_keys import IGNORED_TRAINER
from credit_jax.config.data import BackpropSteps
from credit_jax.config.dates import Timestep
from credit_jax.config.finetune import FinetuneConfig, Stages
from credit_jax.config.parallelism import FsdpConfig, ParallelismConfig
from credit_jax.config.schedules import ScheduleConfig

MatmulPrecision = Literal["highest", "high", "default"]
# What makes the training step; None is `credit_jax.make_train_step`, whose arguments
# those of `custom_objects` take.
TRAINERS: Registry[Callable[..., Any] | None] = Registry("trainer", FunctionType)
TRAINERS |= {"gen2": None, "era5-gen2": None}


def _check_trainer(name: str) -> None:
    if name not in TRAINERS:
        raise not_available("trainer", name, TRAINERS)


class PrecisionPolicy(StrictModel):
    """Dtypes of a run with `amp: true`; parameters are stored in float32.

    It applies if it is set, or with `parallelism.data: fsdp2`.

    Attributes:
        param_dtype: dtype of the computation; float16 implies loss scaling.
        reduce_dtype: dtype in which gradients are summed.
        output_dtype: dtype of the model's output.
    """

    param_dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    output_dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"


class Float8Config(StrictModel):
    """Dense layers in float8, with `fp8: true`.

    Attributes:
        recipe: "rowwise_with_gw_hp" has a power-of-two scale for every token and for
            every weight matrix, and computes the gradient of the weights in the compute
            dtype.
        min_channels: smallest number of input and of output channels of such a layer.
        gradient_dtype: dtype to which gradients of a layer's output are rounded;
            "float8_e5m2" has a wider range and one bit less.
    """

    recipe: Literal["rowwise_with_gw_hp"] = "rowwise_with_gw_hp"
    min_channels: int = Field(default=1024, ge=16)
    gradient_dtype: Literal["float8_e4m3fn", "float8_e5m2"] = "float8_e4m3fn"


class ShuffleConfig(StrictModel):
    """The order of the samples of an epoch; CREDIT has no such section.

    Attributes:
        window: period of time within which samples are permuted, as "4d", so that a
            field is read once for all samples that have it. Null permutes all of them.
    """

    window: Timestep | None = None


class CompilerConfig(StrictModel):
    """How XLA compiles the training step; CREDIT has no such section.

    Attributes:
        options: options of XLA by name, as in XLA_FLAGS without the dashes
            ("xla_gpu_enable_latency_hiding_scheduler": true).
        group_halos: whether to send the halo rows of both directions in one launch, on
            GPUs.
    """

    options: dict[str, bool | int | str] = Field(default_factory=dict)
    group_halos: bool = False


class TrainerConfig(StrictModel):
    """How the model is trained.

    Attributes:
        type: "gen2" or its alias "era5-gen2", or a function of `custom_objects` that
            makes the training step.
        args: further arguments of that function. CREDIT has no such key.
        parallelism: see `ParallelismConfig`.
        fsdp: see `FsdpConfig`.
        num_devices: number of devices of the run; null uses all. CREDIT has no such
            key and ignores it: its launcher sets the number.
        learning_rate, weight_decay: arguments of AdamW; decay applies to every
            parameter.
        amp: whether to compute in 16 bits. If `fsdp2_mp_policy` is set or
            `parallelism.data` is "fsdp2", the dtypes are those of the policy (bfloat16
            by default); else training computes in float16 with dynamic loss scaling,
            and validation in float32.
        matmul_precision: precision of products and convolutions of float32 arrays:
            "highest" is float32 on every device; with "high" and "default" GPUs compute
            them in TF32 and TPUs in three and one passes of bfloat16, with errors of
            1e-3. No effect where the model computes in 16 bits. CREDIT has no such key:
            it always computes float32 in float32.
        fp8, float8: whether to compute the products of large dense layers in float8,
            see `Float8Config`; not with float16. CREDIT has neither key.
        activation_checkpoint: "none", "full" (or true) or "selective": whether the
            activations of a block are recomputed in the backward pass; "selective"
            recomputes those of attention.
        unroll_blocks: the loop over the blocks of a stage is unrolled on GPUs up to
            this number of blocks. This moves fewer bytes and launches fewer kernels,
            but compilation takes longer with every block. CREDIT has no such key.
        compiler: see `CompilerConfig`.
        train_batch_size, valid_batch_size: samples of one data-parallel rank.
        batches_per_epoch, valid_batches_per_epoch: largest number of batches; 0 is all.
        epochs, num_epoch, start_epoch: an invocation trains the epochs from
            `start_epoch` to min(epochs, start_epoch + num_epoch).
        train_one_epoch, stop_after_epoch: whether to end after one epoch.
        backprop_on_timestep: see `DataConfig`, over which this key takes precedence.
        backprop: gradients of forecasts of several steps. "truncated" sums the gradient
            of each step's loss with respect to that step only, as CREDIT does; "full"
            propagates all losses through the whole forecast, which CREDIT does not
            have.
        ensemble_size: number of forecasts of each sample, with independent noise (or
            dropout); with the loss `ring-crps`, one on each data-parallel rank.
        grad_accum_every: micro-batches whose gradients are averaged before an update.
        grad_max_norm: global norm to clip gradients to; 0 does not clip, and "dynamic"
            clips to the norm itself.
        use_ema, ema_decay: exponential moving average of the parameters, which
            validation uses.
        use_scheduler, scheduler: see `credit_jax.config.schedules`.
        finetune: weights of another run that the first epoch begins with, and which of
            them are trained, see `FinetuneConfig`. CREDIT has no such key.
        curriculum: stages of the run, such as longer and longer forecasts, see
            `CurriculumStage`; CREDIT has no such key.
        load_weights: whether to start from the weights, and their average, of the last
            checkpoint of `save_loc`.
        load_optimizer: whether to restore the optimizer state, too.
        load_scaler, load_scheduler: whether to restore the states of both loss scaling
            and schedule, too; either of them or `load_optimizer` does it, unless the
            first epoch is 0.
        reload_epoch: whether to continue with the epoch after that of the checkpoint.
        update_learning_rate: whether to use `learning_rate` instead of the checkpoint's
            if the rate is constant or changed by `plateau`. Under schedules by batch
            the first micro-batch of a run trains at it, as in CREDIT, in a run from
            fresh weights, too.
        skip_validation: whether to skip validation.
        training_metric, training_metric_direction: the metric that selects the best
            checkpoint ("valid_loss", or "train_loss" without validation), and whether
            smaller or larger values are better.
        stopping_patience: number of epochs without improvement after which training
            ends; no effect without validation.
        save_best_weights, save_backup_weights, save_every_epoch: whether more
            checkpoints are kept besides the last.
        save_every_steps, save_every_minutes: updates and minutes between checkpoints
            within an epoch, of which the newest two are kept; 0 minutes for none.
        hang_minutes: minutes without the begin or the end of a batch, an update, a save
            or a compilation after which all processes end with code 75, for their
            launcher to start them again with `--resume`; 0 for no limit. CREDIT has no
            such key.
        save_metric_vars: variables whose metrics are logged: true, false, or a list.
        log_every_steps: updates between records of `training_steps.jsonl`.
        use_tensorboard: whether to write TensorBoard logs besides the CSV file.
        use_wandb, use_mlflow: whether to send records and epochs to Weights & Biases or
            MLflow.
        thread_workers, valid_thread_workers: number of threads that read samples.
        prefetch_factor: batches that are read ahead, and at least one per thread.
        shuffle: order of the samples of an epoch.

    Differs from CREDIT: `fsdp2_mp_policy` also applies without fsdp2, and by default
    with spectral norm, too; `amp` also works on a CPU. `grad_max_norm: dynamic` never
    clips, as in CREDIT, and causes a warning. The settings of a schedule are those of
    the config; CREDIT uses those of the checkpoint from which it continues.
    """

    type: Annotated[str, checked_by(_check_trainer)]
    args: dict[str, Any] = Field(default_factory=dict)
    parallelism: ParallelismConfig
    fsdp: FsdpConfig = FsdpConfig()
    num_devices: int | None = Field(None, ge=1)
    learning_rate: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    amp: bool
    fsdp2_mp_policy: PrecisionPolicy = PrecisionPolicy()
    matmul_precision: MatmulPrecision = "highest"
    fp8: bool = False
    float8: Float8Config = Float8Config()
    activation_checkpoint: Annotated[
        Literal["none", "full", "selective"],
        BeforeValidator(
            lambda x: ("none", "full")[x] if isinstance(x, bool) else x,
        ),
    ] = "none"
    unroll_blocks: int = Field(16, ge=0)
    compiler: CompilerConfig = CompilerConfig()
    train_batch_size: int = Field(ge=1)
    valid_batch_size: int = Field(ge=1)
    batches_per_epoch: int = Field(0, ge=0)
    valid_batches_per_epoch: int = Field(0, ge=0)
    epochs: int = Field(1, ge=1)
    num_epoch: int = Field(100_000_000, ge=1)
    start_epoch: int = Field(0, ge=0)
    train_one_epoch: bool = False
    stop_after_epoch: bool = False
    backprop_on_timestep: BackpropSteps | None = None
    backprop: Literal["truncated", "full"] = "truncated"
    ensemble_size: int = Field(1, ge=1)
    grad_accum_every: int = Field(1, ge=1)
    grad_max_norm: NonNegativeFloat | Literal["dynamic"] = 0.0
    use_ema: bool = False
    ema_decay: float = Field(0.9999, ge=0, lt=1)
    use_scheduler: bool = False
    scheduler: ScheduleConfig | None = Field(None, discriminator="scheduler_type")
    finetune: FinetuneConfig | None = None
    curriculum: Stages = ()
    load_weights: bool = False
    load_optimizer: bool = False
    load_scaler: bool = False
    load_scheduler: bool = False
    reload_epoch: bool = False
    update_learning_rate: bool = False
    skip_validation: bool = False
    training_metric: str = Field(
        default_factory=lambda seen: (
            "train_loss" if seen.get("skip_validation") else "valid_loss"
        )
    )
    training_metric_direction: Literal["min", "max"] = "min"
    stopping_patience: int = Field(100, ge=1)
    save_best_weights: bool = True
    save_backup_weights: bool = True
    save_every_epoch: bool = False
    save_every_steps: int | None = Field(None, ge=1)
    save_every_minutes: float = Field(15.0, ge=0)
    hang_minutes: float = Field(60.0, ge=0)
    save_metric_vars: bool | tuple[str, ...] = True
    log_every_steps: int = Field(1, ge=1)
    use_tensorboard: bool = False
    use_wandb: bool = False
    use_mlflow: bool = False
    thread_workers: int = Field(4, ge=0)
    valid_thread_workers: int = Field(4, ge=0)
    prefetch_factor: int = Field(2, ge=1)
    shuffle: ShuffleConfig = ShuffleConfig()

    passes_over: ClassVar = True
    ignored: ClassVar = IGNORED_TRAINER

    def conflicts(self) -> Iterator[str]:
        if self.args and TRAINERS[self.type] is None:
            yield (
                f"args are given, but {self.type} has none; they are those of a "
                "trainer of custom_objects"
            )
        if self.use_scheduler and self.scheduler is None:
            yield ("use_scheduler is true without a scheduler section; add it")
        if self.scheduler and "use_scheduler" not in self.model_fields_set:
            yield (
                "there is a scheduler section, but use_scheduler is not given; "
                "write use_scheduler: true (or false)"
            )
        if self.finetune is not None and self.load_weights:
            yield (
                "load_weights is true beside finetune: the run would begin with the "
                "weights of save_loc and with those of finetune.from; expected one. "
                "--resume goes on with a run that was begun by finetune"
            )
        policy = self.mp_policy
        if self.fp8 and policy is not None and policy.param_dtype == "float16":
            yield (
                "fp8 is true, but amp computes in float16; expected bfloat16 "
                "(fsdp2_mp_policy: {param_dtype: bfloat16}) or float32 (amp: false)"
            )

    @property
    def mp_policy(self) -> PrecisionPolicy | None:
        """The dtypes for `amp`; None is float32."""
        if not self.amp:
            return None
        if not self.trains_in_autocast:
            return self.fsdp2_mp_policy
        return PrecisionPolicy(param_dtype="float16", output_dtype="float16")

    @property
    def trains_in_autocast(self) -> bool:
        """Whether `amp` is CREDIT's float16 autocast, which is for training only."""
        has_policy = "fsdp2_mp_policy" in self.model_fields_set
        return self.amp and not has_policy and self.parallelism.data != "fsdp2"

    @property
    def schedule(self) -> ScheduleConfig | None:
        """The schedule of the rate; None for a constant rate."""
        return self.scheduler if self.use_scheduler else None

    @property
    def keeps_rate(self) -> bool:
        """Whether the rate is part of the run's state, not of micro-batches alone."""
        return self.schedule is None or self.schedule.keeps_rate

    @property
    def sets_first_rate(self) -> bool:
        """Whether the first micro-batch trains at `learning_rate`, in any schedule."""
        # CREDIT sets it with `update_learning_rate` when everything is loaded, in a run
        # from fresh weights, too. A schedule by epoch begins at it (`cosine-annealing`)
        # or steps once more before the first batch (`lambda`).
        by_batch = not self.keeps_rate and not getattr(self.schedule, "by_epoch", True)
        return self.update_learning_rate and by_batch

    @property
    def clip_norm(self) -> float:
        """The global norm that gradients are clipped to; 0 means no clipping."""
        return 0.0 if self.grad_max_norm == "dynamic" else float(self.grad_max_norm)

    def without_effect(self) -> dict[str, str]:
        lines = {}
        if self.grad_max_norm == "dynamic":
            lines["grad_max_norm"] = (
                "'dynamic' clips to the norm itself, which never clips"
            )
        if "float8" in self.model_fields_set and not self.fp8:
            lines["float8"] = "fp8 is not true"
        return lines
