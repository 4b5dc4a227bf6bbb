"""Which mesh trains a config fastest, derived from programs that are traced.

Each mesh of a number of devices, with each way of sharding the parameters and of
recomputing activations, takes as many samples at a time as its memory holds and
accumulates the rest of a batch. Its time is the account of docs/mesh.md: the work of a
replica is counted in its traced gradient (`plan.replica`), what data parallelism sends
follows from the sizes of the parameters. Nothing is compiled or measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from credit_jax.config import Config
from credit_jax.config.messages import counted
from credit_jax.config.trainer import TrainerConfig
from credit_jax.models.model_def import ModelDef
from credit_jax.parallel.mesh.axes import DOMAIN, DP_REPLICATE, DP_SHARD, EP, TP
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.mesh.model_fit import ULYSSES, model_problems
from credit_jax.parallel.params.remat import ACTIVATIONS
from credit_jax.plan.accelerators import Accelerator
from credit_jax.plan.memory import MemoryEstimate, estimate_memory, local_size, rules_of
from credit_jax.plan.replica import ReplicaWork, replica_work
from credit_jax.plan.run import model_options, precision_of

FLOAT32 = 4
# Of the memory of a device, what a run may take: XLA and the libraries take the rest.
USABLE = 0.9
# Share of the time of transfers that no kernels hide: of tensor-parallel sums and moves
# of rows, and of sums of gradients (benchmarks/reports/accelerator_025deg.md).
EXPOSED = 0.6
EXPOSED_SUMS = 0.5
# Bytes that the update reads and writes for a parameter, and of its average; kernels of
# the update for an array of parameters (from the same report).
UPDATE_BYTES, AVERAGE_BYTES = 32, 8
UPDATE_KERNELS = 0.6
# Bytes of gradients that XLA sums in one message.
_SUMMED = 30 * 2**20

MEMORY, BATCH = "memory", "batch"
# Of a schedule, what counts micro-batches.
_BY_BATCH = ("warmup_steps", "total_steps", "first_cycle_steps")
# What is traced: the degrees of a replica, and its remat.
Program: TypeAlias = tuple[ParallelDims, str]


@dataclass(frozen=True)
class MeshChoice:
    """A mesh, and how a run uses it.

    Attributes:
        dims: degrees of the mesh.
        remat: activation checkpointing.
        over_domain: whether parameters are sharded over domain, too.
        reshard: whether parameters are gathered again in the backward pass.
        micro_batch: samples of a data-parallel rank at a time.
        accumulate: micro-batches of an update.
    """

    dims: ParallelDims
    remat: str = "none"
    over_domain: bool = False
    reshard: bool = True
    micro_batch: int = 1
    accumulate: int = 1

    @property
    def name(self) -> str:
        """The mesh as a name such as "ddp2xfsdp4xdomain8"; see docs/certificate.md."""
        degrees = {
            "ddp": self.dims.dp_replicate,
            "fsdp": self.dims.dp_shard,
            EP: self.dims.ep,
            TP: self.dims.tp,
            DOMAIN: self.dims.domain,
            "ulysses": self.dims.ulysses_degree or 1,
        }
        return "x".join(f"{k}{n}" for k, n in degrees.items() if n > 1) or "1"

    def trainer(self, config: Config) -> dict[str, Any]:
        """The keys of the `trainer:` section that it decides, for a config.

        The dtypes of the config are among them, as CREDIT's depend on the mesh.
        """
        dims, policy = self.dims, config.trainer.mp_policy
        data = "fsdp2" if dims.dp_shard > 1 else "ddp"
        parallelism: dict[str, Any] = {
            "data": data if dims.batch_size > 1 else "none",
            "tensor": dims.tp,
            "domain": dims.domain,
        }
        if dims.hsdp_enabled:
            parallelism |= {DP_REPLICATE: dims.dp_replicate, DP_SHARD: dims.dp_shard}
        if dims.ep > 1:
            parallelism[EP] = dims.ep
        if dims.ulysses_degree:
            parallelism[ULYSSES] = dims.ulysses_degree
        section = {
            "parallelism": parallelism,
            "num_devices": dims.world_size,
            "activation_checkpoint": self.remat,
            "train_batch_size": self.micro_batch,
            "grad_accum_every": self.accumulate,
            "fsdp": {
                **config.trainer.fsdp.model_dump(mode="json"),
                "over_domain": self.over_domain,
                "reshard_after_forward": self.reshard,
            },
        }
        if policy is not None:
            section["fsdp2_mp_policy"] = policy.model_dump(mode="json")
        return section | _lengths(config.trainer, self.accumulate)


@dataclass(frozen=True)
class UpdateTimes:
    """Seconds of an update, by what they are spent on.

    Attributes:
        work: kernels at the roofline, if samples were shared evenly.
        idle: the further work of the busiest device: uneven rows, halos, and what
            devices repeat.
        recomputation: activations computed again.
        launches: launches of kernels.
        transfers: transfers that no kernels hide, and what FSDP's gathers write.
        update: the optimizer.
    """

    work: float
    idle: float
    recomputation: float
    launches: float
    transfers: float
    update: float

    @property
    def total(self) -> float:
        """All of them."""
        return sum(asdict(self).values())


@dataclass(frozen=True)
class Ranked:
    """A choice, and its derived rate.

    Attributes:
        choice: the mesh and how it is used.
        memory: estimated bytes of a device.
        times: seconds of an update; None where it does not run.
        rate: samples per second; 0 where it does not run.
        loses: why it is not the first, in one word; "" for the first.
    """

    choice: MeshChoice
    memory: float
    times: UpdateTimes | None = None
    rate: float = 0.0
    loses: str = ""

    def to_json(self, config: Config) -> dict[str, Any]:
        """JSON values, for a config."""
        return {
            "mesh": self.choice.name,
            "samples_per_second": self.rate,
            "loses_by": self.loses or None,
            "bytes_a_device": self.memory,
            "seconds_of_an_update": None if self.times is None else asdict(self.times),
            "trainer": self.choice.trainer(config),
        }


@dataclass(frozen=True)
class Cluster:
    """Devices of one kind in nodes.

    Attributes:
        accelerator: the device.
        num_devices: number of devices.
        node: devices of a node.
        memory: bytes of a device.
    """

    accelerator: Accelerator
    num_devices: int
    node: int
    memory: float

    def link(self, span: int) -> float:
        """Bytes per second between devices among `span` consecutive ones."""
        within = span <= self.node and self.node % span == 0
        return self.accelerator.link if within else self.accelerator.network


def _lengths(trainer: TrainerConfig, accumulate: int) -> dict[str, Any]:
    """The keys that count micro-batches, for as many updates as in a config.

    Args:
        trainer: section of the config.
        accumulate: micro-batches of an update.
    """
    each, section = trainer.grad_accum_every, dict[str, Any]()
    if accumulate == each:
        return section
    if trainer.batches_per_epoch:
        updates = -(-trainer.batches_per_epoch // each)
        section["batches_per_epoch"] = updates * accumulate
    schedule = trainer.scheduler.model_dump() if trainer.scheduler else {}
    by_batch = {
        key: round(schedule[key] * accumulate / each)
        for key in _BY_BATCH
        if key in schedule
    }
    if by_batch:
        section["scheduler"] = schedule | by_batch
    return section


def batch_of(config: Config, num_devices: int) -> int:
    """Samples of an update of a config on some devices, with its tensor and domain."""
    trainer = config.trainer
    replica = trainer.parallelism.tensor * trainer.parallelism.domain
    # Ranks of an ensemble have members of the same samples.
    ranks = 1 if config.shares_batches else max(num_devices // replica, 1)
    return trainer.train_batch_size * trainer.grad_accum_every * ranks


def replicas(model_def: ModelDef, num_devices: int, largest: int) -> list[ParallelDims]:
    """Returns the degrees of a replica that a model runs on: ep, tp, domain, Ulysses.

    Of Ulysses there is the largest degree that divides the heads, beside none.

    Args:
        model_def: the model.
        num_devices: number of devices, which the devices of a replica divide.
        largest: largest number of devices of a replica.
    """
    fitting = []
    has_experts = model_def.config.routing is not None
    sizes = [n for n in range(1, largest + 1) if num_devices % n == 0]
    for size in sizes:
        for tp in _divisors(size):
            for domain in _divisors(size // tp):
                ep = size // tp // domain
                if ep > 1 and not has_experts:
                    continue
                degrees = {EP: ep, TP: tp, DOMAIN: domain}
                if model_problems(model_def, degrees) or model_def.validate(tp, domain):
                    continue
                for ulysses in _ulysses(model_def, degrees):
                    fitting.append(
                        ParallelDims(**degrees, ulysses_degree=ulysses, world_size=size)
                    )
    return fitting


def _ulysses(model_def: ModelDef, degrees: Mapping[str, int]) -> Iterator[int | None]:
    """None, and the largest degree of Ulysses that fits, if there is one."""
    yield None
    for degree in reversed(_divisors(degrees[DOMAIN])[1:]):
        if not model_problems(model_def, {**degrees, ULYSSES: degree}):
            yield degree
            return


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


@dataclass
class MeshSearch:
    """The ranking of meshes for a config.

    Args:
        config: the config; its batch, loss and optimizer stay.
        model_def: its model.
        cluster: the devices.
        batch: samples of an update.
        trace: function that returns the work of each of some programs, in their order;
            None for one after the other in this process.
    """

    config: Config
    model_def: ModelDef
    cluster: Cluster
    batch: int
    trace: Callable[[Sequence[Program]], Iterable[ReplicaWork]] | None = None
    _work: dict[Program, ReplicaWork] = field(default_factory=dict)
    _memory: dict[Any, tuple[float, float]] = field(default_factory=dict)
    _parameters: dict[Any, tuple[float, float]] = field(default_factory=dict)

    def ranked(self) -> list[Ranked]:
        """Returns every choice, the fastest first, those that do not run last.

        Raises:
            ValueError: none fits the memory.
        """
        largest = min(self.cluster.node, self.cluster.num_devices)
        while True:
            degrees = replicas(self.model_def, self.cluster.num_devices, largest)
            rows = [self._fitted(choice) for choice in self._choices(degrees)]
            fitting = [row for row in rows if not row.loses]
            if fitting or largest >= self.cluster.num_devices:
                break
            # Only where no replica within a node fits does one leave it.
            largest = min(2 * largest, self.cluster.num_devices)
        too_large = [row for row in rows if row.loses == MEMORY]
        if not fitting and not too_large:
            raise ValueError(self._unshared(rows))
        if not fitting:
            least = min(too_large, key=lambda row: row.memory)
            gigabytes = self.cluster.memory / 1e9
            raise ValueError(
                f"no mesh of {counted(self.cluster.num_devices, 'device')} fits: "
                f"{least.choice.name} with {least.choice.remat} remat needs least, "
                f"{least.memory / 1e9:.1f} GB of {USABLE:.0%} of {gigabytes:.0f} GB "
                f"for a batch of {self.batch}; take more devices, more --memory, or "
                "another --batch"
            )
        self._trace_all(row.choice for row in fitting)
        timed = [self._timed(row) for row in fitting]
        best, *others = sorted(timed, key=lambda row: -row.rate)
        wrong = [row for row in rows if row.loses]
        losers = (replace(row, loses=_reason(row, best)) for row in others)
        return [best, *losers, *wrong]

    def _unshared(self, rows: Sequence[Ranked]) -> str:
        """That no data-parallel ranks share the batch, and which would."""
        devices = counted(self.cluster.num_devices, "device")
        ranks = sorted({row.choice.dims.batch_size for row in rows})
        numbers = " or ".join(map(str, ranks))
        if self.config.loss.members_are_ranks:
            size = self.config.trainer.ensemble_size
            return (
                f"no mesh of {devices} has the data-parallel ranks of "
                f"trainer.ensemble_size {size}, one a member; there are meshes with "
                f"{numbers}; take a multiple of {size} --devices"
            )
        return (
            f"no mesh of {devices} shares a batch of {self.batch}: its data-parallel "
            f"ranks are {numbers}, and each has as many samples; take a multiple as "
            "--batch, or other --devices"
        )

    def _choices(self, degrees: Sequence[ParallelDims]) -> Iterator[MeshChoice]:
        """Every mesh and its uses, with one sample at a time."""
        for inner in degrees:
            ranks = self.cluster.num_devices // inner.world_size
            for shard in _divisors(ranks):
                dims = replace(
                    inner,
                    cp=None,
                    dp_shard=shard,
                    dp_replicate=ranks // shard,
                    world_size=self.cluster.num_devices,
                )
                for remat in ACTIVATIONS:
                    for over_domain in (False, True)[: 1 + (inner.domain > 1)]:
                        for reshard in (True, False)[: 1 + (shard > 1)]:
                            yield MeshChoice(dims, remat, over_domain, reshard)

    def _fitted(self, choice: MeshChoice) -> Ranked:
        """A choice with the most samples at a time that fit, or why it does not run."""
        ranks, trainer = choice.dims.batch_size, self.config.trainer
        fixed, sample = self._bytes(choice)
        fits = not self.config.loss.members_are_ranks or ranks == trainer.ensemble_size
        ranks = 1 if self.config.shares_batches else ranks
        if not fits or self.batch % ranks:
            return Ranked(choice, fixed + sample, loses=BATCH)
        usable, samples = USABLE * self.cluster.memory, self.batch // ranks
        fitting = [n for n in _divisors(samples) if fixed + n * sample <= usable]
        if not fitting:
            return Ranked(choice, fixed + sample, loses=MEMORY)
        most = max(fitting)
        choice = replace(choice, micro_batch=most, accumulate=samples // most)
        return Ranked(choice, fixed + most * sample)

    def _timed(self, row: Ranked) -> Ranked:
        """A choice that fits, with its times."""
        times = self.times(row.choice)
        return replace(row, times=times, rate=self.batch / times.total)

    def _trace_all(self, choices: Iterable[MeshChoice]) -> None:
        """Counts the work that the times of these choices need."""
        needed = dict.fromkeys(p for choice in choices for p in _programs(choice))
        new = [program for program in needed if program not in self._work]
        trace = self.trace or (lambda programs: map(self.traced, programs))
        self._work |= zip(new, trace(new), strict=True)

    def _bytes(self, choice: MeshChoice) -> tuple[float, float]:
        """Bytes of a device without samples, and of each sample."""
        axes = choice.dims.mesh_axes
        plain = replace(choice, over_domain=False, reshard=True)
        alone = replace(axes, data=(), shard=None, num_data=1, num_shard=1)
        stored = (axes, choice.over_domain, choice.reshard)
        if stored not in self._memory:
            memory = self._estimated(replace(choice, remat="none"), axes)
            self._memory[stored] = (memory.total - memory.of_samples, 0.0)
        sampled = (alone, choice.remat)
        if sampled not in self._memory:
            self._memory[sampled] = (0.0, self._estimated(plain, alone).of_samples)
        return self._memory[stored][0], self._memory[sampled][1]

    def _estimated(self, choice: MeshChoice, axes: Any) -> MemoryEstimate:
        return estimate_memory(_with(self.config, choice), self.model_def, axes)

    def times(self, choice: MeshChoice) -> UpdateTimes:
        """Returns the seconds of an update; see docs/mesh.md."""
        device, dims = self.cluster.accelerator, choice.dims
        replica = dims.ep * dims.tp * dims.domain
        samples = choice.micro_batch * self.config.num_members
        counted = [self._counted(program) for program in _programs(choice)]
        work, alone, remat = (each.of_samples(samples) for each in counted[:3])
        norms = counted[0].stored
        again = remat.seconds / alone.seconds - 1
        launched = remat.kernels / alone.kernels
        stored, whole = self._sizes(choice)
        even = alone.seconds / (dims.tp * dims.domain)
        weights = norms.seconds * stored / whole
        recomputed = work.seconds * again
        launches = (work.kernels + norms.kernels) * launched * device.launch
        rewritten = 0.0
        if len(counted) > 3:
            gathered = counted[3].of_samples(samples)
            rewritten = max(gathered.seconds - work.seconds, 0.0)
            launches += max(gathered.kernels - work.kernels, 0.0) * device.launch
        kernels = work.seconds + rewritten + weights + recomputed + launches
        link = self.cluster.link(replica)
        messages = (work.messages + norms.messages) * device.message
        moved = (work.sent + norms.sent) / link
        waits = EXPOSED * (messages + moved)
        # FSDP's gathers and scatters run beside kernels, as far as these last.
        waits += max(self._gathers(choice) - kernels - waits, 0.0)
        micro = choice.accumulate * self.config.data.forecast_len
        trainer = self.config.trainer
        moments = UPDATE_BYTES + (AVERAGE_BYTES if trainer.use_ema else 0)
        update = moments * stored / device.bandwidth
        started = UPDATE_KERNELS * len(self.model_def.param_specs) * device.launch
        return UpdateTimes(
            work=micro * (min(even, work.seconds) + weights),
            idle=micro * (work.seconds - min(even, work.seconds)),
            recomputation=micro * recomputed,
            launches=micro * launches + started,
            transfers=micro * (waits + rewritten) + EXPOSED_SUMS * self._sums(choice),
            update=update,
        )

    def _counted(self, program: Program) -> ReplicaWork:
        if program not in self._work:
            self._work[program] = self.traced(program)
        return self._work[program]

    def traced(self, program: Program) -> ReplicaWork:
        """Traces a program and returns its work."""
        dims, remat = program
        trainer = self.config.trainer
        options = model_options(trainer) | {"ac_mode": remat, "over_domain": False}
        return replica_work(
            self.model_def,
            dims,
            self.cluster.accelerator,
            mp_policy=precision_of(trainer),
            **options,
        )

    def _sizes(self, choice: MeshChoice) -> tuple[float, float]:
        """Parameters that a device stores, and that it computes with."""
        axes = choice.dims.mesh_axes
        key = (axes, choice.over_domain)
        if key not in self._parameters:
            rules = rules_of(_with(self.config, choice).trainer)
            whole = replace(axes, data=(), shard=None, num_data=1, num_shard=1)
            specs = self.model_def.param_specs.values()
            stored = sum(local_size(spec, axes, rules) for spec in specs)
            computed = sum(local_size(spec, whole) for spec in specs)
            self._parameters[key] = (float(stored), float(computed))
        return self._parameters[key]

    def _gathers(self, choice: MeshChoice) -> float:
        """Seconds of the gathers and scatters of a micro-batch."""
        dims, (_, computed) = choice.dims, self._sizes(choice)
        item = FLOAT32 if precision_of(self.config.trainer).compute.itemsize > 2 else 2
        # A gather, another in the backward pass, and the scatter of gradients.
        each = (2 if choice.reshard else 1) * item + FLOAT32
        seconds = 0.0
        if dims.dp_shard > 1:
            share = computed / (dims.domain if choice.over_domain else 1)
            sent = each * share * (dims.dp_shard - 1) / dims.dp_shard
            span = dims.dp_shard * dims.ep * dims.tp * dims.domain
            seconds += sent / self.cluster.link(span)
        if choice.over_domain:
            sent = each * computed * (dims.domain - 1) / dims.domain
            seconds += sent / self.cluster.link(dims.domain)
        return seconds

    def _sums(self, choice: MeshChoice) -> float:
        """Seconds of the sums of gradients of an update."""
        dims = choice.dims
        stored, _ = self._sizes(choice)
        copies = dims.dp_replicate * (1 if choice.over_domain else dims.domain)
        if copies == 1:
            return 0.0
        size = FLOAT32 * stored
        span = dims.world_size if dims.dp_replicate > 1 else dims.domain
        sent = 2 * (copies - 1) / copies * size / self.cluster.link(span)
        return sent + math.ceil(size / _SUMMED) * self.cluster.accelerator.message


def _programs(choice: MeshChoice) -> tuple[Program, ...]:
    """Those of the replica of a choice, of one device, and of one with its remat.

    The last is that of the replica with weights that are gathered twice, if they are.
    """
    dims, whole = choice.dims, ParallelDims()
    # Two replicas stand for all: batch norms send messages between them.
    copies = 2 if dims.dp_enabled else 1
    size = dims.ep * dims.tp * dims.domain
    alone = replace(dims, cp=None, dp_shard=1, dp_replicate=1, world_size=size)
    inner = replace(alone, dp_replicate=copies, world_size=copies * size)
    programs = ((inner, "none"), (whole, "none"), (whole, choice.remat))
    if choice.reshard and dims.dp_shard > 1:
        shared = replace(alone, dp_shard=2, world_size=2 * size)
        return (*programs, (shared, "none"))
    return programs


def _with(config: Config, choice: MeshChoice) -> Config:
    """A config with the remat and the FSDP of a choice, one sample at a time."""
    trainer = config.trainer
    fsdp = trainer.fsdp.model_copy(
        update={
            "over_domain": choice.over_domain,
            "reshard_after_forward": choice.reshard,
        }
    )
    changed = {
        "activation_checkpoint": choice.remat,
        "fsdp": fsdp,
        "train_batch_size": 1,
    }
    return config.model_copy(update={"trainer": trainer.model_copy(update=changed)})


def _reason(row: Ranked, best: Ranked) -> str:
    """What a choice spends more on than the best one, in one word."""
    assert row.times is not None, "only choices that run are compared"
    assert best.times is not None, "the best one runs"
    mine, first = asdict(row.times), asdict(best.times)
    worst = max(mine, key=lambda name: mine[name] - first[name])
    if worst != "idle":
        return worst
    return "idle rows" if row.choice.dims.domain > 1 else "repetition"
