"""Compilation of programs: options, cache, stages, names of the parts of a step.

Each is a `jax.named_scope`; an operation belongs to the part of its innermost scope.
The scopes of row exchanges are in `parallel.rows.exchange`.
"""

from __future__ import annotations

import gc
import mmap
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, wraps
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from jax.core import Tracer
from jax.sharding import Mesh

from credit_jax.io import activity
from credit_jax.io.mirror import cache_folder, local_path
from credit_jax.kernels import platform
from credit_jax.parallel import collectives
from credit_jax.parallel.joint import joint

CACHE_VARIABLE = "CREDIT_JAX_CACHE"
CACHE_HELP = (
    "folder of compiled programs, kept between runs; 'none' for no cache "
    f"(default: ${CACHE_VARIABLE}, or credit_jax in the user's cache folder)"
)

Options = Mapping[str, bool | int | str]

# Measured on WXFormer steps, 2026-11, jax 0.10.2, 2 cores:
# - Without LLVM's expensive passes a step compiles sooner and runs as fast. The fusion
#   emitters stay on, as the older emitters do not vectorize operations that overwrite
#   their input: most of a gradient (GELU's: 3.2 ms instead of 0.5 ms) and all of AdamW.
# - YNNPACK's convolutions take two to three times as long as Eigen's, its matrix
#   products a third longer; its reductions are faster. In float64 Eigen has no
#   convolutions: XLA's own loops take 200 times as long as YNNPACK.
# Counted in the WXFormer step of 0.25 degrees, compiled for 8 H100 (benchmarks):
# - Reduce-scatters of 6 MB a shard: by default XLA combines the gradients to three, of
#   which the last one has little beside which it could run.
# - All-gathers of 12 MB instead of 30: XLA's scheduler places a few kernels beside
#   each, however much it gathers.
# On an H200 (jax 0.11.2):
# - XLA chooses between two compilers for every fusion by running both: 4,400 fusions of
#   the WXFormer of 0.25 degrees, whose step took more than five minutes to compile.
#   Matrix products and convolutions are still chosen by running them.
# - Scatters add in the order in which threads come to them, and so do some algorithms
#   of libraries: a third of the parameters had other bits after the same step. Without
#   those a step took 2 % longer, and a run that goes on is the same as without a break.
_SOONER_ON_GPUS: Options = {"xla_gpu_experimental_enable_fusion_autotuner": False}
# The operations that are YNNPACK's.
_YNNPACK = "xla_cpu_experimental_ynn_fusion_type"
_OPTIONS: Mapping[str, Options] = {
    "cpu": {
        "xla_llvm_disable_expensive_passes": True,
        _YNNPACK: "LIBRARY_FUSION_TYPE_REDUCE",
    },
    "gpu": {
        **_SOONER_ON_GPUS,
        "xla_gpu_exclude_nondeterministic_ops": True,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": 6 * 2**20,
        "xla_gpu_all_gather_combine_threshold_bytes": 12 * 2**20,
    },
}


# For all programs of a process: no loops unrolled by LLVM, and the choice for GPUs.
_SOONER: Options = {
    "xla_backend_extra_options": "xla_cpu_disable_loop_unrolling",
    **_SOONER_ON_GPUS,
}
_LEVEL = "xla_backend_optimization_level"
# For programs that run once or twice. The fusion emitters compile slower than what they
# replaced, which XLA has up to jaxlib 0.10.
_QUICKLY: Options = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_llvm_disable_expensive_passes": True,
    _LEVEL: 0,
}


def accepted_options(options: Options) -> dict[str, bool | int | str]:
    """Returns those options that the installed XLA has."""
    # XLA ends the process at an option in XLA_FLAGS that it does not know, and compiles
    # no program with one; options come and go with versions of jaxlib.
    return {name: value for name, value in options.items() if _is_accepted(name)}


@cache
def _is_accepted(option: str) -> bool:
    """Whether XLA's library contains the name of an option."""
    # XLA itself can be asked only after it has read XLA_FLAGS. The null byte at the end
    # distinguishes options from what else has their names: the description of XLA's
    # protocol buffers contains those that were removed, too.
    for path in Path(jaxlib.version.__file__).parent.glob("*jax_common.*"):
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if content.find(option.encode() + b"\0") >= 0:
                return True
    return False


def add_flags(options: Options) -> None:
    """Adds options to XLA_FLAGS before JAX is used: those that XLA has, none twice."""
    flags = os.environ.get("XLA_FLAGS", "")
    present = re.findall(r"--(\w+)", flags)
    missing = {name: options[name] for name in options if name not in present}
    os.environ["XLA_FLAGS"] = " ".join([flags, *as_flags(missing)]).strip()


def as_flags(options: Options) -> list[str]:
    """Returns the options that XLA knows as XLA_FLAGS has them."""
    return [
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in accepted_options(options).items()
    ]


def compile_quickly() -> None:
    """Adds to XLA_FLAGS that programs are optimized little, in a third of the time."""
    add_flags(_QUICKLY)


def compile_sooner() -> None:
    """Sets this process to trace and compile faster, before JAX is used."""
    # Tracing a step allocates a million objects that stay alive: a collection for every
    # 700 allocations takes a tenth of the time. Without loop unrolling by LLVM a
    # WXFormer step compiles in a seventh less and runs no slower; XLA reads this from
    # XLA_FLAGS alone.
    gc.set_threshold(100_000, 50, 100)
    add_flags(_SOONER)


def compile_program(
    function: Callable[..., Any],
    mesh: Mesh,
    *,
    donate_argnums: int | Sequence[int] = (),
    options: Options | None = None,
    group_halos: bool = False,
    level: int | None = None,  # 0 or 1 for CPUs: compiles in half of the time
) -> Any:
    """`jax.jit` of a whole program, with compiler options for the devices of `mesh`."""
    kind = mesh.devices.flat[0].platform
    options_of_kind = {**_OPTIONS.get(kind, {})}
    if level is not None and kind == "cpu":
        options_of_kind |= {**_QUICKLY, _LEVEL: level}
    if jax.config.values["jax_enable_x64"]:
        options_of_kind.pop(_YNNPACK, None)
    available = accepted_options(options_of_kind)

    @wraps(function)
    def program(*args: Any) -> Any:
        with collectives.group_halos(group_halos):
            return function(*args)

    # Only the outermost `jax.jit` may have compiler options, so that what it returns
    # cannot be called inside of another jitted function.
    compiled = jax.jit(
        program,
        donate_argnums=donate_argnums,
        compiler_options={**available, **(options or {})} or None,
    )
    return joint(compiled, mesh)


def check_options(options: Options) -> None:
    """Raises a ValueError with all options, or values, that XLA rejects."""
    problems = []
    for name, value in options.items():
        probe = jax.jit(lambda x: x, compiler_options={name: value})
        try:
            probe.lower(0.0).compile()
        except RuntimeError as error:
            problems.append(f"{name}: {value!r} ({str(error).strip()})")
    if problems:
        raise ValueError(
            f"trainer.compiler.options: jaxlib {jaxlib.version.__version__} does not "
            f"take {', '.join(problems)}; expected options of XLA and their values, as "
            "XLA_FLAGS has them without the dashes; correct or remove them"
        )


def loops_hold_collectives(*, alone: bool = False) -> bool:
    """Whether a loop may contain collectives on the current mesh."""
    # XLA on CPU orders two collectives of a program by their start, not by their end. A
    # loop that still runs in another thread counts as started, so a later collective
    # that does not depend on the loop may run beside those inside of it: devices then
    # hang or exchange wrong values (jaxlib 0.10.2; openxla/xla
    # xla/runtime/execution_graph.cc, "scheduling" edges). `alone`: no other can run
    # beside it.
    return alone or platform() != "cpu"


def is_outermost(*args: Any) -> bool:
    """Whether a jitted function of these arguments is a program, not part of one."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args))


def use_cache(folder: str | None) -> None:
    """Enables JAX's persistent cache in a folder that can be made; "none" for none."""
    chosen = folder or os.environ.get(CACHE_VARIABLE) or str(cache_folder())
    if chosen == "none":
        return
    path = Path(local_path(chosen)).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if jax.config.values["jax_compilation_cache_max_size"] != -1:
            # With a limit, JAX fails to write programs where an access time is missing:
            # a process was killed while it wrote a program, or had no limit.
            for program in path.glob("*-cache"):
                used = program.with_name(program.name.removesuffix("cache") + "atime")
                if not used.exists():
                    used.write_bytes(time.time_ns().to_bytes(8, "little"))
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(path))


# The stages of compiling, as `jax.monitoring` names them.
_STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "XLA",
}
_FIRST_STAGE, *_, _LAST_STAGE = _STAGES
_LONG = 10.0  # seconds, from which a program gets a line of the log


class _Stages:
    """Follows the stages in which JAX compiles a program."""

    def __init__(self) -> None:
        self._depth = 0
        self._name = ""
        self._seconds: dict[str, float] = {}
        self._activity = ExitStack()

    def begin(self, event: str, value: float, **details: Any) -> None:
        """Listens to the beginnings of stages (`jax.monitoring`)."""
        del value
        if event not in _STAGES or not activity.in_main_thread():
            return
        # Also functions that are traced or compiled while another one is traced
        # announce their stages; the outermost one is reported.
        self._depth += 1
        if self._depth > 1:
            return
        # Traced as `step`, compiled as `jit(step)`.
        name = str(details.get("fun_name", ""))
        name = name.removeprefix("jit(").removesuffix(")")
        if event == _FIRST_STAGE or name != self._name:
            self._name, self._seconds = name, {}
        stage = activity.activity(f"compiling {name}, {_STAGES[event]}")
        self._activity.enter_context(stage)

    def end(self, event: str, duration_secs: float, **details: Any) -> None:
        """Listens to the durations of stages, at their ends."""
        del details
        if event not in _STAGES or not activity.in_main_thread() or not self._depth:
            return
        self._depth -= 1
        if self._depth:
            return
        self._activity.close()
        self._seconds[_STAGES[event]] = duration_secs
        total = sum(self._seconds.values())
        if event == _LAST_STAGE and total >= _LONG and not activity.is_silent():
            text = activity.duration_text
            parts = ", ".join(f"{k} {text(v)}" for k, v in self._seconds.items())
            activity.log_line(f"compiled {self._name} in {text(total)} ({parts})")


@cache
def report_stages() -> None:
    """Names the stages of compiling as activities, from now on in this process."""
    stages = _Stages()
    jax.monitoring.register_scalar_listener(stages.begin)
    jax.monitoring.register_event_duration_secs_listener(stages.end)


INPUT = "input"  # casts, folds frames into channels, pads
EMBEDDING = "embedding"  # strided convolutions and patches
BLOCKS = "blocks"  # residual sums, reads and writes of the loop over blocks
ATTENTION = "attention"
POSITION_BIAS = "position_bias"  # of attention
FEED_FORWARD = "feed_forward"
NORM = "norm"  # layer and group norms, wherever they are
DECODER = "decoder"
OUTPUT = "output"  # crops the padding, interpolates, unfolds frames
SPECTRAL_NORM = "spectral_norm"  # power iteration, and division of the weights
PARAMETERS = "parameters"  # casts and gathers of a block, reduce-scatter of gradients
LOSS = "loss"
UPDATE = "update"  # sum and norm of the gradient, clipping, optimizer, EMA

PARTS = (
    INPUT,
    EMBEDDING,
    BLOCKS,
    ATTENTION,
    POSITION_BIAS,
    FEED_FORWARD,
    NORM,
    DECODER,
    OUTPUT,
    SPECTRAL_NORM,
    PARAMETERS,
    LOSS,
    UPDATE,
)
