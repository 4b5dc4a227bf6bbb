"""Losses of one training job on many meshes, and of CREDIT's trainer.

    python -m benchmarks.accuracy.mesh_parity [--meshes 1 dp2 ...] [--all] [--rows 45]

All runs have the weights and global batches of CREDIT's trainer, which runs first on
one process and then on two along its domain axis. Writes reports/mesh_parity-{rows}.md
and .json, which benchmarks/README.md explains.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.accuracy.case import Case, case_config, credit_case, random_case
from benchmarks.accuracy.credit_run import CreditRun, CreditWay, credit_run, write_data
from benchmarks.accuracy.mesh_run import MeshRun, run_mesh
from benchmarks.meshes import num_devices
from benchmarks.report import Table, add_out_option, publish
from credit_jax.models.registry import build
from credit_jax.ops.relative_error import relative_error
from credit_jax.parallel.mesh.devices import ensure_devices

DEFAULT_MESHES = ("1", "dp2", "tp2", "domain2", "domain3", "dp2xtp2xdomain2")
ALL_MESHES = (
    *DEFAULT_MESHES[:-1],
    *("ddp2", "domain4", "domain8", "dp8", "tp2xdomain4", "dp2xdomain4"),
    DEFAULT_MESHES[-1],
)
CREDIT_DOMAIN = 2
SHOWN_STEPS = (1, 5, 20)

Run = MeshRun | CreditRun


@dataclass(frozen=True)
class Line:
    """One run and its reference.

    Attributes:
        name: name of the run.
        base: the reference; None for the reference itself.
        run: its record, or the error that ended it.
    """

    name: str
    base: Run | None
    run: Run | str


def main(arguments: Sequence[str] | None = None) -> Path:
    """Runs everything, prints the table and writes the report; returns its path."""
    options = _parse(arguments)
    meshes = list(ALL_MESHES if options.all else options.meshes)
    if "1" not in meshes:
        meshes.insert(0, "1")
    ensure_devices(max(map(num_devices, meshes)))
    config = case_config(options.rows, options.steps, options.batch)
    console = Console()
    lines = _run_all(config, options, meshes, console)
    path = publish(
        f"mesh_parity-{options.rows}_rows",
        _sections(lines, options),
        {"runs": [_as_json(line) for line in lines]},
        config={**_written(options, meshes), "job": config},
        folder=options.out,
    )
    console.print(f"report: {path}")
    return path


def _run_all(
    config: dict[str, Any], options: Any, meshes: list[str], console: Console
) -> list[Line]:
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        latitude = write_data(folder, options.rows)
        serial = None
        if options.credit:
            serial, lines = _run_credit(config, folder, console)
            state, x, y = serial.initial, serial.x, serial.y
            case = credit_case(build(config["model"]), state, x, y, latitude)
        else:
            case = random_case(config, options.steps, latitude)
    one = _run_ours(config, case, "1", console)
    ours = [Line("credit_jax, one device", serial, one)]
    for mesh in meshes:
        if mesh != "1":
            run = _run_ours(config, case, mesh, console)
            ours.append(Line(f"credit_jax, {mesh}", one, run))
    return lines + ours


def _run_credit(
    config: dict[str, Any], folder: Path, console: Console
) -> tuple[CreditRun, list[Line]]:
    console.print("CREDIT on one process ...")
    serial = credit_run(config, folder)
    if isinstance(serial, str):
        raise RuntimeError(f"CREDIT on one process failed: {serial}")
    console.print(f"CREDIT, domain={CREDIT_DOMAIN} on {CREDIT_DOMAIN} processes ...")
    split = credit_run(config, folder, CreditWay(domain=CREDIT_DOMAIN))
    if isinstance(split, CreditRun) and split.weights != serial.weights:
        raise RuntimeError(
            "CREDIT's two runs began with different weights: norms "
            f"{serial.weights} and {split.weights}"
        )
    return serial, [
        Line("CREDIT, one process", None, serial),
        Line(f"CREDIT, domain{CREDIT_DOMAIN}", serial, split),
    ]


def _run_ours(
    config: dict[str, Any], case: Case, mesh: str, console: Console
) -> MeshRun:
    console.print(f"credit_jax on {mesh} ...")
    run = run_mesh(config, case, mesh)
    console.print(f"  {run.seconds:.0f} s, compilation included")
    return run


def _written(options: Any, meshes: list[str]) -> dict[str, Any]:
    """The options on which the numbers depend."""
    names = ("rows", "steps", "batch", "credit")
    return {"meshes": meshes, **{name: getattr(options, name) for name in names}}


def _as_json(line: Line) -> dict[str, Any]:
    if isinstance(line.run, str):
        return {"name": line.name, "error": line.run}
    out: dict[str, Any] = {
        "name": line.name,
        "loss": line.run.loss.tolist(),
        "gradient_norm": line.run.gradient_norm.tolist(),
    }
    if isinstance(line.run, MeshRun):
        out["seconds"] = line.run.seconds
    if line.base is not None:
        losses = zip(line.run.loss, line.base.loss, strict=True)
        first = line.run.gradient_norm[:1], line.base.gradient_norm[:1]
        out["distance"] = {
            "forward": relative_error(line.run.prediction, line.base.prediction),
            "gradient_norm_step_1": relative_error(*first),
            "loss": [relative_error(a, b) for a, b in losses],
        }
    return out


def _header(num_steps: int) -> list[str]:
    steps = [f"loss at step {n}" for n in SHOWN_STEPS if n <= num_steps]
    return ["run", "forward", "gradient norm, step 1", *steps]


def _cells(line: Line, num_steps: int) -> list[str]:
    """A row of the table; in brackets the distances from the base."""
    values = _as_json(line)
    shown = [n - 1 for n in SHOWN_STEPS if n <= num_steps]
    if "error" in values:
        return [line.name, f"refused: {values['error']}", *[""] * (len(shown) + 1)]
    losses = [f"{values['loss'][i]:.7f}" for i in shown]
    if "distance" not in values:
        return [line.name, "", f"{values['gradient_norm'][0]:.5f}", *losses]
    away = values["distance"]
    return [
        line.name,
        f"({away['forward']:.1e})",
        f"{values['gradient_norm'][0]:.5f} ({away['gradient_norm_step_1']:.1e})",
        *[
            f"{loss} ({away['loss'][i]:.1e})"
            for loss, i in zip(losses, shown, strict=True)
        ],
    ]


def _sections(lines: list[Line], options: Any) -> list[str | Table]:
    table = Table(
        "Same weights, same global batches (relative distance)",
        _header(options.steps),
        [_cells(line, options.steps) for line in lines],
    )
    intro = (
        f"A small WXFormer on {options.rows} x 64 points, earth padding, spectral norm "
        f"on, {options.steps} steps of {options.batch} samples. In brackets the "
        "relative distance: CREDIT's domain axis and credit_jax on one device from "
        "CREDIT on one process, every other mesh from credit_jax on one device; "
        "forward is that of the first prediction."
    )
    return [f"# Mesh parity, {options.rows} rows", intro, table]


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.mesh_parity")
    add = parser.add_argument
    add("--meshes", nargs="+", default=list(DEFAULT_MESHES), metavar="MESH")
    add("--all", action="store_true", help=f"all of {', '.join(ALL_MESHES)}")
    add("--rows", type=int, default=32, help="latitude rows, even for CREDIT's domain")
    add("--steps", type=int, default=20)
    add("--batch", type=int, default=8, help="samples of a global batch")
    add("--no-credit", dest="credit", action="store_false", help="credit_jax alone")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
