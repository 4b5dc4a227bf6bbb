"""Small forms of configs, and their training steps on meshes as XLA schedules them.

A program is optimized and scheduled for the device, which is all that is counted; no
machine code is made. Of each only the account is stored, one JSON file, so that a run
that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.accelerator.account import counted
from benchmarks.accelerator.compile_step import Job
from benchmarks.accelerator.kernels import kernels
from benchmarks.accelerator.overlap import summary, transfers
from benchmarks.accelerator.program import parse
from benchmarks.accelerator.roofline import as_json, work_by
from benchmarks.accelerator.targets import ROOT, TARGETS
from benchmarks.compiled_step import CONFIGS
from benchmarks.meshes import num_data, parse_mesh
from credit_jax.config.yaml_file import read_yaml
from credit_jax.models.graph.graph import nearest_edges
from credit_jax.parallel.mesh.device_mesh import built_degrees

TARGET = "h100"
# Samples of an update, on all devices together.
BATCH = 8
# Neighbors of a node of a graph.
NEIGHBORS = 17
# Seconds between looks at what XLA has written.
_PAUSE = 0.5
# A scheduled program, and what XLA writes after it.
_SCHEDULED = "*gpu_after_optimizations.txt"
_LATER = "*gpu_after_optimizations-memory-usage-report.txt"


@dataclass(frozen=True)
class Case:
    """A config with fewer blocks, or on another grid.

    Attributes:
        config: name of a file of configs/, without its ending.
        changes: what its model section has instead.
        options: options of XLA.
    """

    config: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def mapping(self, folder: Path) -> dict[str, Any]:
        """The config; files of its grid are in a folder.

        Its steps compute in bfloat16 and have no average of the weights, as those that
        are compiled.
        """
        config = read_yaml(CONFIGS / f"{self.config}.yaml")
        config["model"] |= self.changes
        config["trainer"] |= {
            "amp": True,
            "use_ema": False,
            "fsdp2_mp_policy": {"param_dtype": "bfloat16", "reduce_dtype": "float32"},
        }
        if "edge_path" in config["model"]:
            edges = folder / f"{self.config}.nc"
            config["model"]["edge_path"] = str(edges.resolve())
            if not edges.exists():
                rows, columns = (
                    config["model"][f"image_{name}"] for name in ("height", "width")
                )
                latitude = 90.0 - 180.0 * (np.arange(rows) + 0.5) / rows
                longitude = 360.0 * np.arange(columns) / columns
                nearest_edges(latitude, longitude, NEIGHBORS).to_netcdf(edges)
        return config


def _wide(rows: tuple[int, int], columns: tuple[int, int]) -> dict[str, Any]:
    """Padding of the globe."""
    pads = {"pad_lat": [*rows], "pad_lon": [*columns]}
    return {"activate": True, "mode": "earth", **pads}


# Where a CAMulator has most of its blocks.
_ONE_STAGE = {"depth": [0, 0, 2, 0]}
# Without a device XLA chooses no tiles for some products of these models.
_LIBRARY = {"xla_gpu_enable_triton_gemm": False}
# Nine configs: the width of their layers is their own, blocks are fewer, and grids such
# that the kernels of a sample take milliseconds and eight samples fit a device.
CASES = {
    case.config: case
    for case in (
        Case(
            "wxformer_025deg",
            {
                "depth": [1, 1, 1, 1],
                "image_height": 400,
                "image_width": 720,
                "padding_conf": _wide((40, 40), (40, 40)),
            },
        ),
        Case("swin_6h", {"depths": [1]}),
        Case(
            "fuxi_6h", {"image_height": 320, "image_width": 640, "depth": 1}, _LIBRARY
        ),
        Case("wrf_1h", {"depth": 1}, _LIBRARY),
        Case("unet_1deg", {"image_height": 384, "image_width": 576}),
        Case("graph_1deg", {"image_height": 96, "image_width": 144, "n_blocks": 1}),
        Case("camulator", _ONE_STAGE),
        Case(
            "wxformer_moe_1deg",
            {
                **_ONE_STAGE,
                "image_height": 361,
                "image_width": 720,
                "padding_conf": _wide((12, 11), (24, 24)),
            },
        ),
        Case("crossformer_diffusion_1deg", _ONE_STAGE),
    )
}
# Mesh, remat, and whether parameters are stored over domain: replicas of one device, of
# two, of four, and of eight. What a model does not run on is left out.
CHOICES = (
    ("ddp8", "none", False),
    ("domain8", "none", False),
    ("ddp4xtp2", "none", False),
    ("dp8", "none", False),
    ("ddp4xdomain2", "none", False),
    ("tp2xdomain4", "none", False),
    ("ddp8", "full", False),
    ("dp2xdomain4", "none", False),
    ("ddp2xtp4", "none", False),
    ("ep8", "none", False),
    ("dp4xtp2", "none", False),
    ("domain8", "none", True),
    ("dp2xtp2xdomain2", "none", False),
    ("ddp2xep2xdomain2", "none", False),
    ("tp8", "none", False),
    ("tp4xdomain2", "none", False),
    ("ddp8", "selective", False),
)


def job_of(
    case: Case, folder: Path, mesh: str, remat: str = "none", over_domain: bool = False
) -> Job:
    """The step of a case on a mesh; its config is written to a folder."""
    path = folder / f"{case.config}.yaml"
    path.write_text(yaml.safe_dump(case.mapping(folder)))
    samples = BATCH // num_data(mesh)
    return Job(
        TARGET,
        str(path.resolve()),
        mesh,
        remat,
        samples=samples,
        over_domain=over_domain,
        compiler={"options": case.options} if case.options else {},
    )


def stored_account(job: Job, folder: Path, *, compiles: bool = True) -> Any:
    """Returns the account of a step: the stored one, or a new one.

    Args:
        job: the step.
        folder: folder of all accounts.
        compiles: whether to compile what is not stored.

    Returns:
        The account; None if it is not stored and not to be compiled; an account with
        the key "error" alone if XLA did not compile it.
    """
    path = job.folder(folder).with_suffix(".json")
    if path.exists():
        return json.loads(path.read_text())
    if not compiles:
        return None
    began = time.perf_counter()
    try:
        text = scheduled(job, job.folder(folder))
        result: dict[str, Any] = _account(job, text)
    except (RuntimeError, ValueError) as error:
        result = {"error": str(error)[-2000:]}
    result["wall_seconds"] = time.perf_counter() - began
    path.write_text(json.dumps(result, indent=1) + "\n")
    return result


def scheduled(job: Job, folder: Path) -> str:
    """Returns the optimized and scheduled HLO of a step, from a separate process.

    The process is ended before XLA makes machine code, which takes most of the time of
    compilation and is not counted.

    Args:
        job: the step.
        folder: folder of what XLA writes; it is removed afterwards.

    Raises:
        RuntimeError: XLA could not compile it.
    """
    target = TARGETS[job.target]
    target.install()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = target.environment()
    environment["XLA_FLAGS"] += f" --xla_dump_to={folder} --xla_dump_hlo_as_text"
    command = [sys.executable, "-m", "benchmarks.accelerator.compile_step"]
    command += [json.dumps(asdict(job)), str(folder)]
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=out
        )
        while process.poll() is None and not _steps(folder, _LATER):
            time.sleep(_PAUSE)
        process.kill()
        process.wait()
    texts = _steps(folder, _SCHEDULED)
    if not texts:
        last = "\n".join(log.read_text().splitlines()[-15:])
        raise RuntimeError(f"{job.title} was not compiled for {job.target}:\n{last}")
    text = texts[0].read_text()
    shutil.rmtree(folder)
    return text


def _steps(folder: Path, pattern: str) -> list[Path]:
    """Files of the step; other programs are small."""
    return [path for path in folder.glob(pattern) if "jit_step" in path.name]


def _account(job: Job, text: str) -> dict[str, Any]:
    """Kernels, transfers and seconds of a step at the roofline."""
    target, program = TARGETS[job.target], parse(text)
    every = kernels(program)
    sent = summary(
        transfers(program, built_degrees(parse_mesh(job.mesh)), target), target
    )
    totals = counted(every, target, sum(row["exposed_seconds"] for row in sent))
    del totals["steps"], totals["longest"]
    parts = as_json(work_by(lambda kernel: kernel.part, every, target))
    of_job = ("mesh", "remat", "samples", "over_domain")
    return (
        {name: getattr(job, name) for name in of_job}
        | totals
        | {
            "parts": parts,
            "collectives": sent,
        }
    )
