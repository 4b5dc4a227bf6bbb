"""Compiles a training step for an accelerator, in a separate process.

The program's text (`step.hlo`) and its account (`step.json`) go to a folder. Run by
`benchmarks.accelerator`, with the environment of the target.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.accelerator.targets import ROOT, TARGETS

TEXT, ACCOUNT = "step.hlo", "step.json"


@dataclass(frozen=True)
class Job:
    """A program to compile.

    Attributes:
        target: one of `TARGETS`.
        model: a name of `compiled_step.MODELS`, or the path of a config.
        mesh: see `meshes.parse_mesh`.
        remat: activation checkpointing.
        precision: precision of the forward.
        samples: samples of each data-parallel rank.
        float8: fewest channels of layers in float8; None for none.
        over_domain: whether parameters are stored sharded over a domain axis, too.
        compiler: `trainer.compiler` of a config: options of XLA.
    """

    target: str
    model: str
    mesh: str = "1"
    remat: str = "none"
    precision: str = "bfloat16"
    samples: int = 1
    float8: int | None = None
    over_domain: bool = False
    compiler: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        float8 = "" if self.float8 is None else f", float8 from {self.float8} channels"
        shares = "domain" in self.mesh and self.over_domain
        shared = ", parameters over domain" if shares else ""
        return f"{self.mesh}, remat {self.remat}{float8}{shared}{self._compiled}"

    @property
    def _compiled(self) -> str:
        """The settings of the compiler, as text."""
        settings = dict(self.compiler.get("options", {}))
        settings |= {k: v for k, v in self.compiler.items() if k != "options"}
        return "".join(f", {name}={value}" for name, value in settings.items())

    def folder(self, parent: Path) -> Path:
        """Folder of the text and the account, below a folder of all programs."""
        model = Path(self.model).stem
        parts = (model, self.mesh, self.remat, self.precision, str(self.samples))
        parts += () if self.float8 is None else (f"float8_{self.float8}",)
        parts += ("over_domain",) if self.over_domain else ()
        parts += (self._compiled.replace(", ", "-"),) if self.compiler else ()
        return parent / self.target / "-".join(parts)


@dataclass(frozen=True)
class Compiled:
    """A compiled program.

    Attributes:
        job: what was compiled.
        text: its optimized HLO.
        account: see `_account`.
    """

    job: Job
    text: str
    account: dict[str, Any]


def compile_job(job: Job, parent: Path, *, reuse: bool = False) -> Compiled:
    """Compiles a step in a separate process.

    Args:
        job: what to compile.
        parent: folder of all programs.
        reuse: whether to reuse a program that exists.

    Raises:
        RuntimeError: XLA could not compile it.
    """
    target, folder = TARGETS[job.target], job.folder(parent)
    if reuse and (folder / ACCOUNT).exists():
        return _read(job, folder)
    target.install()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ACCOUNT).unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.accelerator.compile_step"]
    command += [json.dumps(asdict(job)), str(folder)]
    environment = target.environment()
    log = folder / "log"
    with log.open("w") as out:
        subprocess.run(
            command, cwd=ROOT, env=environment, stdout=out, stderr=out, check=False
        )
    if not (folder / ACCOUNT).exists():
        last = "\n".join(log.read_text().splitlines()[-15:])
        raise RuntimeError(f"{job.title} was not compiled for {job.target}:\n{last}")
    return _read(job, folder)


def _read(job: Job, folder: Path) -> Compiled:
    account = json.loads((folder / ACCOUNT).read_text())
    return Compiled(job, (folder / TEXT).read_text(), account)


def main() -> None:
    """Compiles the job of the first argument into the folder of the second."""
    job, folder = Job(**json.loads(sys.argv[1])), Path(sys.argv[2])
    from benchmarks.accelerator.float8 import traced_products
    from benchmarks.compiled_step import model_block, trace_step
    from benchmarks.meshes import num_data
    from credit_jax.config.trainer import CompilerConfig
    from credit_jax.models.flops import flops_of, gradient_flops
    from credit_jax.models.registry import build
    from credit_jax.parallel.compiler import compile_sooner

    target = TARGETS[job.target]
    if not target.is_gpu:
        compile_sooner()
    model = model_block(job.model)
    options: dict[str, Any] = {
        "platform": None,
        "precision": job.precision,
        "float8": job.float8,
        "over_domain": job.over_domain,
        "compiler": CompilerConfig(**job.compiler),
        "devices": target.devices(),
    }
    batch = job.samples * num_data(job.mesh)
    _, traced = trace_step(model, job.mesh, batch=batch, remat=job.remat, **options)
    began = time.perf_counter()
    program: Any = traced.lower(lowering_platforms=(target.platform,)).compile()
    seconds = time.perf_counter() - began
    (folder / TEXT).write_text(program.as_text())
    # Of the definitions: kernels of the target may compute something twice.
    useful = job.samples * gradient_flops(build(model))
    flops = {"traced": flops_of(traced.jaxpr), "useful": useful}
    account = _account(program, seconds) | flops
    account["float8_traced"] = traced_products(traced.jaxpr)
    (folder / ACCOUNT).write_text(json.dumps(account, indent=1))


def _account(program: Any, seconds: float) -> dict[str, Any]:
    """Bytes of memory, seconds to compile, and for a TPU the compiler's estimate."""
    from benchmarks.compiled_step import program_bytes

    estimate = (program.cost_analysis() or {}).get("optimal_seconds")
    return {
        "memory": program_bytes(program),
        "compile_seconds": seconds,
        "estimate_seconds": estimate if estimate and estimate > 0 else None,
    }


if __name__ == "__main__":
    main()
