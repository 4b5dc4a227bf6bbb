"""Compiler options of whole programs, and the cache of compiled programs."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from jax.sharding import Mesh

from credit_jax.kernels import platform
from credit_jax.parallel import collectives

CACHE_VARIABLE = "CREDIT_JAX_CACHE"
CACHE_HELP = (
    "folder of compiled programs, kept between runs; 'none' for no cache "
    f"(default: ${CACHE_VARIABLE}, or credit_jax in the user's cache folder)"
)

# Measured on WXFormer steps, 2026-11, jax 0.10.2, 2 cores:
# - Without LLVM's costly passes a step compiles sooner and runs as fast. The fusion
#   emitters stay on: the older ones do not vectorize what is written over its input,
#   which is most of a gradient (GELU's: 3.2 for 0.5 ms) and all of AdamW.
# - YNNPACK's convolutions take two to three times as long as Eigen's, its products a
#   third longer; its reductions are faster.
_OPTIONS: dict[str, dict[str, bool | str]] = {
    "cpu": {
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE",
    }
}


_EXTRA_OPTIONS = "--xla_backend_extra_options"
_NO_UNROLLING = "xla_cpu_disable_loop_unrolling"


def compile_sooner() -> None:
    """Process settings that shorten tracing and compilation.

    Garbage is collected every 100,000 objects instead of 700: tracing a step makes a
    million that stay, and collections take a tenth of its time.

    On a CPU, LLVM unrolls no loops, which is a seventh of the time to compile a
    WXFormer step, and the step runs no slower. XLA takes that option from XLA_FLAGS
    alone, when JAX is first used; the user's own extra options stay as they are.
    """
    gc.set_threshold(100_000, 50, 100)
    flags = os.environ.get("XLA_FLAGS", "")
    if _EXTRA_OPTIONS not in flags:
        added = f"{flags} {_EXTRA_OPTIONS}={_NO_UNROLLING}"
        os.environ["XLA_FLAGS"] = added.strip()


def compile_program(
    function: Callable[..., Any],
    mesh: Mesh,
    *,
    donate_argnums: int | Sequence[int] = (),
    options: Mapping[str, bool | int | str] | None = None,
    group_halos: bool = False,
) -> Any:
    """`jax.jit` of a whole program, with compiler options for the devices of `mesh`.

    Only the outermost `jax.jit` may have compiler options, so what is compiled like
    this cannot be part of another program.

    Args:
        function: a function of global arrays; it may be jitted itself.
        mesh: the mesh that it runs on.
        donate_argnums: arguments whose memory the outputs may take.
        options: further options of XLA, see `check_options`.
        group_halos: see `collectives.group_halos`.
    """
    known = _OPTIONS.get(mesh.devices.flat[0].platform, {})

    @wraps(function)
    def program(*args: Any) -> Any:
        with collectives.group_halos(group_halos):
            return function(*args)

    return jax.jit(
        program,
        donate_argnums=donate_argnums,
        compiler_options={**known, **(options or {})} or None,
    )


def check_options(options: Mapping[str, bool | int | str]) -> None:
    """Checks options of XLA by compiling next to nothing with each.

    Args:
        options: by name, "xla_gpu_enable_latency_hiding_scheduler": True.

    Raises:
        ValueError: XLA does not know one, or not its value; lists all that are wrong.
    """
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


def loops_hold_collectives() -> bool:
    """Whether a loop of a program may hold collectives on its mesh.

    XLA on CPU orders two collectives of a program by when they start, not by when they
    end. A loop that goes on in another thread counts as started, so a later collective
    that needs nothing of the loop runs beside those inside it: devices then meet in
    different orders, and hang or exchange wrong values (jaxlib 0.10.2; openxla/xla
    xla/runtime/execution_graph.cc, "scheduling" edges).
    """
    return platform() != "cpu"


def use_cache(folder: str | None) -> None:
    """Keep compiled programs between runs.

    Args:
        folder: where; None takes the environment's or the default, "none" is no cache.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "credit_jax"
    chosen = folder or os.environ.get(CACHE_VARIABLE) or str(default)
    if chosen == "none":
        return
    path = Path(chosen).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if jax.config.values["jax_compilation_cache_max_size"] != -1:
            _date_programs(path)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(path))


def _date_programs(folder: Path) -> None:
    """Writes when a program was used last where that is missing.

    A process that is killed while it writes a program, or one without a limit of the
    cache's size, leaves it out; with a limit, JAX then writes no program any more.
    """
    for program in folder.glob("*-cache"):
        used = program.with_name(program.name.removesuffix("cache") + "atime")
        if not used.exists():
            used.write_bytes(time.time_ns().to_bytes(8, "little"))
