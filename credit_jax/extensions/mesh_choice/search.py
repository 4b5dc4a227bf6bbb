"""Which mesh trains a config fastest, derived from programs that are traced.

Each mesh of a number of devices, with each way of sharding the parameters and of
recomputing activations, takes as many samples at a time as its memory holds and
accumulates the rest of a batch. Its time is the account of docs/mesh.md: the work of a
replica is counted in its traced gradient (`replica`), what data parallelism sends
follows from the sizes of the parameters. Nothing is compiled or measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from credit_jax.config import Config
from credit_jax.config.messages import counted
from credit_jax.extensions.mesh_choice.accelerators import Accelerator
from credit_jax.extensions.mesh_choice.replica import ReplicaWork, replica_work
from credit_jax.models.model_def import ModelDef
from credit_jax.parallel.mesh.device_mesh import (
    DOMAIN,
    DP_REPLICATE,
    DP_SHARD,
    EP,
    TP,
    MeshAxes,
)
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.mesh.model_fit import ULYSSES, model_problems
from credit_jax.parallel.params.fsdp import ShardingRules
from credit_jax.parallel.params.remat import ACTIVATIONS
from credit_jax.plan import estimates
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
    """A mesh, and how a run uses it."""

    dims: ParallelDims
    remat: str = "none"
    over_domain: bool = False  # whether parameters are sharded over domain, too
    reshard: bool = True  # whether the backward pass gathers parameters again
    micro_batch: int = 1  # samples of a data-parallel rank at a time
    accumulate: int = 1  # micro-batches of an update

    @property
    def name(self) -> str:
        """The mesh as a name such as "ddp2xfsdp4xdomain8"; see docs/certificate.md."""
        dims = self.dims
        degrees = {
            "ddp": dims.dp_replicate,
            "fsdp": dims.dp_shard,
            EP: dims.ep,
            TP: dims.tp,
            DOMAIN: dims.domain,
            "ulysses": dims.ulysses_degree or 1,
        }
        return "x".join(f"{k}{n}" for k, n in degrees.items() if n > 1) or "1"

    def trainer(self, config: Config) -> dict[str, Any]:
        """The keys of the `trainer:` section that it decides, for a config."""
        dims, trainer = self.dims, config.trainer
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
                **trainer.fsdp.model_dump(mode="json"),
                "over_domain": self.over_domain,
                "reshard_after_forward": self.reshard,
            },
        }
        # CREDIT's dtypes depend on the mesh.
        if trainer.mp_policy is not None:
            section["fsdp2_mp_policy"] = trainer.mp_policy.model_dump(mode="json")
        each = trainer.grad_accum_every
        if self.accumulate == each:
            return section
        # Lengths that count micro-batches, for as many updates as in the config.
        if trainer.batches_per_epoch:
            updates = -(-trainer.batches_per_epoch // each)
            section["batches_per_epoch"] = updates * self.accumulate
        schedule = trainer.scheduler.model_dump() if trainer.scheduler else {}
        lengths = {k: schedule[k] for k in _BY_BATCH if k in schedule}
        if lengths:
            longer = {k: round(n * self.accumulate / each) for k, n in lengths.items()}
            section["scheduler"] = schedule | longer
        return section


@dataclass(frozen=True)
class UpdateTimes:
    """Seconds of an update, by what they are spent on."""

    work: float  # kernels at the roofline, if samples were shared evenly
    # Further work of the busiest device: uneven rows, halos, and what devices repeat.
    idle: float
    recomputation: float  # activations computed again
    launches: float  # of kernels
    transfers: float  # that no kernels hide, and what FSDP's gathers write
    update: float  # the optimizer

    @property
    def total(self) -> float:
        """All of them."""
        return sum(asdict(self).values())


@dataclass(frozen=True)
class Ranked:
    """A choice, and its derived rate."""

    choice: MeshChoice
    memory: float  # estimated bytes of a device
    times: UpdateTimes | None = None  # None where it does not run
    rate: float = 0.0  # samples per second
    loses: str = ""  # why it is not the first, in one word

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
    """Devices of one kind in nodes."""

    accelerator: Accelerator
    num_devices: int
    node: int  # devices of a node
    memory: float  # bytes of a device

    def link(self, span: int) -> float:
        """Bytes per second between devices among `span` consecutive ones."""
        within = span <= self.node and self.node % span == 0
        return self.accelerator.link if within else self.accelerator.network


def batch_of(config: Config, num_devices: int) -> int:
    """Samples of an update of a config on some devices, with its tensor and domain."""
    trainer = config.trainer
    replica = trainer.parallelism.tensor * trainer.parallelism.domain
    # Ranks of an ensemble have members of the same samples.
    ranks = 1 if config.shares_batches else max(num_devices // replica, 1)
    return trainer.train_batch_size * trainer.grad_accum_every * ranks


def replicas(model_def: ModelDef, num_devices: int, largest: int) -> list[ParallelDims]:
    """The degrees of a replica that a model runs on: ep, tp, domain, Ulysses."""
    fitting = []
    has_experts = model_def.config.routing is not None
    sizes = [size for size in _divisors(num_devices) if size <= largest]
    triples = [
        (size, tp, domain)
        for size in sizes
        for tp in _divisors(size)
        for domain in _divisors(size // tp)
    ]
    for size, tp, domain in triples:
        degrees = {EP: size // tp // domain, TP: tp, DOMAIN: domain}
        if (
            (degrees[EP] > 1 and not has_experts)
            or model_problems(model_def, degrees)
            or model_def.validate(tp)
        ):
            continue
        fits = (
            degree
            for degree in reversed(_divisors(domain)[1:])
            if not model_problems(model_def, {**degrees, ULYSSES: degree})
        )
        # The largest degree that divides the heads, beside none.
        for ulysses in dict.fromkeys((None, next(fits, None))):
            dims = ParallelDims(**degrees, ulysses_degree=ulysses, world_size=size)
            fitting.append(dims)
    return fitting


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


@dataclass
class MeshSearch:
    """The ranking of meshes for a config, whose batch, loss and optimizer stay."""

    config: Config
    model_def: ModelDef
    cluster: Cluster
    batch: int  # samples of an update
    # What is counted once: of programs, and of ways to store parameters.
    _counts: dict[Any, Any] = field(default_factory=dict)

    def ranked(self) -> list[Ranked]:
        """Returns every choice, the fastest first, those that do not run last."""
        devices = self.cluster.num_devices
        largest = min(self.cluster.node, devices)
        while True:
            degrees = replicas(self.model_def, devices, largest)
            rows = [self._fitted(choice) for choice in self._choices(degrees)]
            fitting = [row for row in rows if not row.loses]
            if fitting or largest >= devices:
                break
            # Only where no replica within a node fits does one leave it.
            largest = min(2 * largest, devices)
        if not fitting:
            raise ValueError(self._why_none(rows))
        timed = []
        for row in fitting:
            times = self.times(row.choice)
            timed.append(replace(row, times=times, rate=self.batch / times.total))
        best, *others = sorted(timed, key=lambda row: -row.rate)
        losers = []
        for row in others:
            # What it spends more on than the best one, in one word.
            first, mine = (asdict(self.times(each.choice)) for each in (best, row))
            worst = max(mine, key=lambda name: mine[name] - first[name])
            if worst == "idle":
                worst = "idle rows" if row.choice.dims.domain > 1 else "repetition"
            losers.append(replace(row, loses=worst))
        return [best, *losers, *(row for row in rows if row.loses)]

    def _why_none(self, rows: Sequence[Ranked]) -> str:
        """That no choice fits the memory or shares the batch, and which would."""
        devices = counted(self.cluster.num_devices, "device")
        too_large = [row for row in rows if row.loses == MEMORY]
        if too_large:
            least = min(too_large, key=lambda row: row.memory)
            return (
                f"no mesh of {devices} fits: {least.choice.name} with "
                f"{least.choice.remat} remat needs least, {least.memory / 1e9:.1f} GB "
                f"of {USABLE:.0%} of {self.cluster.memory / 1e9:.0f} GB for a batch of "
                f"{self.batch}; take more devices, more --memory, or another --batch"
            )
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

    def _bytes(self, choice: MeshChoice) -> tuple[float, float]:
        """Bytes of a device without samples, and of each sample."""
        axes, remat = choice.dims.mesh_axes, choice.remat
        alone = replace(axes, data=(), shard=None, num_data=1, num_shard=1)
        stored = replace(choice, remat="none")
        fixed = self._estimated(stored, axes)
        sample = self._estimated(MeshChoice(choice.dims, remat), alone)
        return fixed.total - fixed.of_samples, sample.of_samples

    def _estimated(self, choice: MeshChoice, axes: Any) -> estimates.MemoryEstimate:
        """Memory with the remat and the FSDP of a choice, one sample at a time."""
        key = axes, choice.remat, choice.over_domain, choice.reshard
        if key in self._counts:
            return self._counts[key]
        trainer = self.config.trainer
        fsdp = {
            "over_domain": choice.over_domain,
            "reshard_after_forward": choice.reshard,
        }
        changed = {
            "activation_checkpoint": choice.remat,
            "fsdp": trainer.fsdp.model_copy(update=fsdp),
            "train_batch_size": 1,
        }
        changed_trainer = trainer.model_copy(update=changed)
        config = self.config.model_copy(update={"trainer": changed_trainer})
        memory = estimates.estimate_memory(config, self.model_def, axes)
        return self._counts.setdefault(key, memory)

    def times(self, choice: MeshChoice) -> UpdateTimes:
        """Returns the seconds of an update; see docs/mesh.md."""
        device, trainer = self.cluster.accelerator, self.config.trainer
        dims = choice.dims
        size, single = dims.ep * dims.tp * dims.domain, ParallelDims()
        # Two replicas stand for all: batch norms send messages between them.
        copies = 2 if dims.dp_enabled else 1
        inner = replace(
            dims, cp=None, dp_shard=1, dp_replicate=copies, world_size=copies * size
        )
        samples = choice.micro_batch * self.config.num_members
        programs = [(inner, "none"), (single, "none"), (single, choice.remat)]
        if choice.reshard and dims.dp_shard > 1:
            # Weights that are gathered again have what the backward pass needs written.
            shared = replace(
                dims, cp=None, dp_shard=2, dp_replicate=1, world_size=2 * size
            )
            programs.append((shared, "none"))
        counts = [self._counted(program) for program in programs]
        work, alone, remat, *more = (each.of_samples(samples) for each in counts)
        gathered = more[0] if more else work
        norms, again = counts[0].stored, remat.seconds / alone.seconds - 1
        rules = replace(estimates.rules_of(trainer), over_domain=choice.over_domain)
        stored, computed, gathers = self._sizes(dims.mesh_axes, rules)

        rewritten = max(gathered.seconds - work.seconds, 0.0)
        weights = norms.seconds * stored / computed
        launched = (work.kernels + norms.kernels) * remat.kernels / alone.kernels
        launched += max(gathered.kernels - work.kernels, 0.0)
        launched += (2 + choice.reshard) * gathers
        kernels = work.seconds * (1 + again) + rewritten + weights
        kernels += launched * device.launch
        moved = (work.sent + norms.sent) / self.cluster.link(size)
        waits = EXPOSED * ((work.messages + norms.messages) * device.message + moved)
        # FSDP's gathers and scatters run beside kernels, as far as these last.
        waits += max(self._gathers(choice, computed) - kernels - waits, 0.0)
        micro = choice.accumulate * self.config.data.forecast_len
        even = min(alone.seconds / (dims.tp * dims.domain), work.seconds)
        moments = UPDATE_BYTES + (AVERAGE_BYTES if trainer.use_ema else 0)
        started = UPDATE_KERNELS * len(self.model_def.param_specs)
        return UpdateTimes(
            work=micro * (even + weights),
            idle=micro * (work.seconds - even),
            recomputation=micro * work.seconds * again,
            launches=(micro * launched + started) * device.launch,
            transfers=micro * (waits + rewritten) + self._sums(choice, stored),
            update=moments * stored / device.bandwidth,
        )

    def _counted(self, program: Program) -> ReplicaWork:
        """The work of a program, which is traced once."""
        if program not in self._counts:
            (dims, remat), trainer = program, self.config.trainer
            options = model_options(trainer) | {"ac_mode": remat, "over_domain": False}
            options["mp_policy"] = precision_of(trainer)
            arguments = self.model_def, dims, self.cluster.accelerator
            self._counts[program] = replica_work(*arguments, **options)
        return self._counts[program]

    def _sizes(self, axes: MeshAxes, rules: ShardingRules) -> tuple[int, int, int]:
        """Parameters that a device stores, and computes with; arrays it gathers."""
        if (axes, rules) not in self._counts:
            alone = replace(axes, data=(), shard=None, num_data=1, num_shard=1)
            specs = self.model_def.param_specs.values()
            split = (d for d in specs if rules.shard_dim(d, axes) is not None)
            self._counts[axes, rules] = (
                sum(estimates.local_size(spec, axes, rules) for spec in specs),
                sum(estimates.local_size(spec, alone) for spec in specs),
                # Those of each block are gathered by themselves.
                sum(spec.shape[0] if spec.is_stacked else 1 for spec in split),
            )
        return self._counts[axes, rules]

    def _gathers(self, choice: MeshChoice, computed: float) -> float:
        """Seconds of FSDP's gathers and scatters of a micro-batch."""
        dims = choice.dims
        item = FLOAT32 if precision_of(self.config.trainer).compute.itemsize > 2 else 2
        # A gather, another in the backward pass, and the scatter of gradients.
        each = (2 if choice.reshard else 1) * item + FLOAT32
        domain = dims.domain if choice.over_domain else 1
        span = dims.dp_shard * dims.ep * dims.tp * dims.domain
        share = each * computed / domain
        shards = share * (1 - 1 / dims.dp_shard) / self.cluster.link(span)
        return shards + share * (domain - 1) / self.cluster.link(domain)

    def _sums(self, choice: MeshChoice, stored: float) -> float:
        """Seconds of the sums of gradients of an update that no kernels hide."""
        dims = choice.dims
        copies = dims.dp_replicate * (1 if choice.over_domain else dims.domain)
        if copies == 1:
            return 0.0
        size = FLOAT32 * stored
        span = dims.world_size if dims.dp_replicate > 1 else dims.domain
        sent = 2 * (copies - 1) / copies * size / self.cluster.link(span)
        messages = math.ceil(size / _SUMMED) * self.cluster.accelerator.message
        return EXPOSED_SUMS * (sent + messages)
