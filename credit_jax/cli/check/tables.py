"""The tables that `python -m credit_jax.check` prints."""

from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from credit_jax.config import Config
from credit_jax.config.data import DataConfig, num_samples
from credit_jax.config.messages import counted, printable
from credit_jax.data import ChannelSchema
from credit_jax.models.common.config import Geometry
from credit_jax.models.model_def import ModelDef, parameter_count
from credit_jax.parallel.mesh.axes import DP_REPLICATE, DP_SHARD, MeshAxes
from credit_jax.plan import RunPlan
from credit_jax.plan.channel_problems import num_encoded
from credit_jax.plan.memory import estimate_memory, local_points
from credit_jax.plan.roofline import StepBound, update_seconds
from credit_jax.training.curriculum import rate_of

GIB = 2**30
MIB = 2**20


def plan_tables(plan: RunPlan, bound: StepBound | None = None) -> Iterator[Table]:
    """Yields the tables of a plan, for the parts that it has.

    Args:
        plan: plan of a run.
        bound: lower bound of the time of a step of an accelerator; None for none.
    """
    model, axes = plan.model, plan.model.axes
    yield channel_table(plan.schema)
    for name, schema in plan.further_schemas.items():
        yield channel_table(schema, f"Channels of {name}")
    if plan.config.data.time_encoding:
        yield time_table(plan.config.data)
    if axes is not None:
        yield mesh_table(plan, axes)
    if (table := _geometry(plan)) is not None:
        yield table
    if model.model_def is None:
        return
    yield parameter_table(model.model_def)
    if axes is not None:
        yield memory_table(plan.config, model.model_def, axes)
        if plan.config.trainer.curriculum:
            yield curriculum_table(plan, model.model_def, axes, bound)


def _geometry(plan: RunPlan) -> Table | None:
    """The table of the geometry; None if the model has none, or problems prevent it."""
    config = plan.model.config
    try:
        geometry = None if config is None else config.geometry()
        axes = plan.model.axes or MeshAxes()
        return None if geometry is None else geometry_table(geometry, axes)
    except (IndexError, ZeroDivisionError):
        # Stages that are not listed or have no rows are problems of the plan.
        if not plan.problems:
            raise
        return None


def _table(title: str, *columns: str) -> Table:
    table = Table(title=_plain(title), box=box.SIMPLE_HEAD, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    return table


def _plain(name: str) -> Text:
    """A name of a file or a config, without markup and terminal escapes."""
    return Text(printable(name))


def time_table(data: DataConfig) -> Table:
    """The times that the vector inputs of a model encode."""
    table = _table("Encoded times", "input", "of", "numbers")
    for name, which in data.time_encoding.items():
        table.add_row(_plain(name), ", ".join(which), str(num_encoded(data, name)))
    return table


def channel_table(schema: ChannelSchema, title: str = "Channels") -> Table:
    """The channels of each variable in the input and the output."""
    table = _table(title, "variable", "type", "levels", "input", "output")
    inputs, targets = schema.input_slices(), schema.target_slices()
    groups = {group.var_key: group for group in (*schema.input, *schema.target)}
    for key, group in groups.items():
        table.add_row(
            _plain(f"{group.source}/{group.variable}"),
            group.field_type,
            str(group.n_levels),
            _span(inputs.get(key)),
            _span(targets.get(key)),
        )
    table.add_section()
    counts = schema.num_input_channels, schema.num_target_channels
    table.add_row("all", "", "", *(str(n) if n else "" for n in counts))
    return table


def _span(channels: slice | None) -> str:
    """First and last channel as "3-7"; empty for None."""
    if channels is None:
        return ""
    first, last = channels.start, channels.stop - 1
    return f"{first}" if first == last else f"{first}-{last}"


def mesh_table(plan: RunPlan, axes: MeshAxes) -> Table:
    """The degrees of the mesh, and what is split along each axis."""
    trainer, devices = plan.config.trainer, counted(plan.num_devices, "device")
    table = _table(f"Mesh of {devices}", "axis", "degree", "shares")
    kind = {"fsdp2": "samples, parameters", "ddp": "samples", "none": "-"}
    table.add_row("dp", str(axes.num_data), kind[trainer.parallelism.data])
    if 1 < axes.num_shard < axes.num_data // axes.num_expert:
        copies = axes.num_data // axes.num_shard // axes.num_expert
        table.add_row(f"  {DP_REPLICATE}", str(copies), "samples")
        table.add_row(f"  {DP_SHARD}", str(axes.num_shard), "samples, parameters")
    if axes.num_expert > 1:
        table.add_row("  ep", str(axes.num_expert), "samples, experts")
    table.add_row("tp", str(axes.num_tensor), "heads, feed-forward units")
    height = "?"
    if plan.model.grid is not None:
        total_rows = plan.model.grid[0]
        height = f"{-(-total_rows // axes.num_domain)} of {total_rows}"
    shared = trainer.fsdp.over_domain and axes.num_domain > 1
    also = ", parameters" if shared else ""
    table.add_row("domain", str(axes.num_domain), f"{height} rows{also}")
    batch, shared = trainer.train_batch_size, plan.config.shares_batches
    total = batch * (1 if shared else axes.num_data) * trainer.grad_accum_every
    ranks = "the same on all ranks" if shared else f"dp {axes.num_data}"
    arithmetic = f"{batch} x {ranks} x accumulation {trainer.grad_accum_every}"
    count = num_samples(plan.config.data)
    table.add_section()
    table.add_row("samples an update", str(total), arithmetic)
    if trainer.ensemble_size > 1:
        members = f"{plan.config.num_members} on each rank"
        table.add_row("members", str(trainer.ensemble_size), members)
    table.add_row("samples an epoch", str(count), "of data's dates")
    return table


def geometry_table(geometry: Geometry, axes: MeshAxes) -> Table:
    """Sizes of every stage, its windows, and its largest number of rows on a device."""
    grid = " x ".join(map(str, geometry.grid))
    padded = " x ".join(map(str, geometry.padded))
    table = _table(
        f"Geometry: grid {grid}, padded {padded}",
        *("stage", "points", "channels", "depth", "heads", "local", "global", "rows"),
    )
    for index, stage in enumerate(geometry.stages):
        table.add_row(
            str(index),
            f"{stage.height} x {stage.width}",
            str(stage.channels),
            str(stage.depth),
            _share(stage.heads, axes.num_tensor),
            _window(stage.local_window, stage.height, stage.width),
            _window(stage.global_window, stage.height, stage.width),
            f"{local_points(stage, axes.num_domain) / stage.width:.4g}",
        )
    return table


def _share(count: int, degree: int) -> str:
    """Number of heads and of the devices that they are split over: "8" or "8 / 2"."""
    if degree == 1:
        return str(count)
    color = "" if count % degree == 0 else "[red]"
    return f"{color}{count} / {degree}"


def _window(window: int, height: int, width: int) -> str:
    fits = height % window == 0 and width % window == 0
    return str(window) if fits else f"[red]{window} no"


def parameter_table(model_def: ModelDef) -> Table:
    """Number of parameters of each part of the model."""
    counts = parameter_count(model_def)
    table = _table("Parameters", "part", "number")
    for name, count in counts.items():
        table.add_row(_plain(name), f"{count:,}")
    table.add_section()
    table.add_row("all", f"{sum(counts.values()):,}")
    if len(model_def.trainable) < len(model_def.param_specs):
        trained = sum(spec.size for spec in model_def.trainable.values())
        table.add_row("trained", f"{trained:,}")
    active = model_def.num_active_parameters
    if active < model_def.num_parameters:
        table.add_row("active for a token", f"{active:,}")
    return table


def memory_table(config: Config, model_def: ModelDef, axes: MeshAxes) -> Table:
    """Estimated memory of one device in training."""
    memory = estimate_memory(config, model_def, axes)
    table = _table("Memory a device", "for", "size")
    for name, size in memory.parts.items():
        table.add_row(name, _bytes(size))
    table.add_section()
    table.add_row("all", _bytes(memory.total))
    return table


def curriculum_table(
    plan: RunPlan, model_def: ModelDef, axes: MeshAxes, bound: StepBound | None
) -> Table:
    """The stages of a run: settings, length, memory, and time on an accelerator."""
    columns = ["stage", "steps", "rate", "updates", "epochs", "samples", "memory"]
    timed = [] if bound is None else ["s an update", "hours"]
    title = "Curriculum" + ("" if bound is None else ", at least")
    table = _table(title, *columns, *timed)
    pairs = zip(plan.config.stages, plan.stage_lengths, strict=True)
    for number, (stage, length) in enumerate(pairs, 1):
        trainer, steps = stage.trainer, stage.data.forecast_len
        full = " full" if steps > 1 and trainer.backprop == "full" else ""
        ranks = 1 if stage.shares_batches else axes.num_data
        samples = trainer.train_batch_size * trainer.grad_accum_every * ranks
        memory = estimate_memory(stage, model_def, axes).total
        cells = [f"{steps}{full}", rate_of(trainer), f"{length.updates:,}"]
        cells += [f"{length.epochs:,}", f"{samples}", _bytes(memory)]
        if bound is not None:
            seconds = update_seconds(bound, plan.config, stage)
            cells += [f"{seconds:.3g}", f"{seconds * length.updates / 3600:.3g}"]
        table.add_row(str(number), *cells)
    return table


def _bytes(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.2f} MiB"
