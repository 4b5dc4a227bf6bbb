"""Certificates of the shipped configs, made small, on many meshes.

    python -m benchmarks.certificates [--configs NAME ...] [--count 12] [--meshes LIST]

Runs `credit-jax certify` for each config of configs/ on the first `count` meshes that
it fits (docs/certificate.md), and writes the table of the largest errors. A call with
`--configs` replaces the results of these.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.recipe import recipe
from benchmarks.report import Table, add_out_option, write_report
from credit_jax.config import build_config
from credit_jax.config.custom_objects import register_objects
from credit_jax.config.yaml_file import read_yaml
from credit_jax.extensions.certification.small_config import certified_mapping
from credit_jax.extensions.certification.subject import (
    NUM_SAMPLES,
    NUM_UPDATES,
    chosen_meshes,
    reference_of,
)
from credit_jax.models.registry import build

CONFIGS = Path(__file__).parents[1] / "configs"
NAME, NUM_DEVICES = "certificates", 8
HEADER = (
    "config",
    "model",
    "meshes",
    "the same",
    "by float64",
    "forecast",
    "loss",
    "gradient",
    "seconds",
    "CPU seconds",
)
# Quantities of a certificate in a column of the table.
COLUMNS = {
    "forecast": "prediction",
    "loss": "loss",
    "gradient": "gradient of all weights",
}
_INTRODUCTION = """# Certificates of the shipped configs

Each config of configs/, made small, compared with itself on one device by
`credit-jax certify` in float32 (docs/certificate.md): the largest relative errors of
all meshes. Where a bound of float32 is broken, float64 decides: such meshes are counted
under `by float64`. Meshes that are compared in float64 alone have no part in the
errors, such as most of `unet_1deg`. Seconds are those of the whole command on the
machine of the recipe, which had other work; CPU seconds are those of its processes
alone, of which two idle cores do two a second. The recipe is that of the last call.
Configs without a row have not been run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Certifies configs and writes the report; returns 1 if one differs."""
    options = _parse(arguments)
    path = options.out / f"{NAME}.json"
    earlier = json.loads(path.read_text())["certificates"] if path.exists() else []
    results = {result["config"]: result for result in earlier}
    for name in options.configs or sorted(c.stem for c in CONFIGS.glob("*.yaml")):
        meshes = options.meshes.split(",") if options.meshes else None
        results[name] = certified(name, meshes, options.count, options.cache)
        print(" | ".join(_cells(results[name])), flush=True)
        # After each config, so that nothing is lost.
        _write([results[name] for name in sorted(results)], options)
    return 0 if all(result["passed"] for result in results.values()) else 1


def certified(
    name: str, meshes: Sequence[str] | None, count: int, cache: str | None
) -> dict[str, Any]:
    """Certifies one config in a process of its own.

    Args:
        name: name of the config in configs/.
        meshes: names of meshes; None for the first that fit.
        count: number of meshes, if none are named.
        cache: folder of compiled programs.
    """
    path = CONFIGS / f"{name}.yaml"
    names = meshes or meshes_of(path)[:count]
    began, used = time.perf_counter(), _cpu_seconds()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        command = [sys.executable, "-m", "credit_jax", "certify", "--config", str(path)]
        command += ["--meshes", ",".join(names), "--out", str(page)]
        command += ["--cache", cache] if cache else []
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        facts = {
            "config": name,
            "meshes": names,
            "seconds": round(seconds, 1),
            "cpu_seconds": round(_cpu_seconds() - used, 1),
        }
        if not page.exists():
            error = (ended.stderr or ended.stdout).strip()[-800:]
            return {**facts, "passed": False, "error": error}
        document = json.loads(page.with_suffix(".json").read_text())
    model = read_yaml(path)["model"]["type"]
    return {**facts, "model": model, **_summary(document)}


def _cpu_seconds() -> float:
    """Of all processes that this one started, and these started, to their end."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def meshes_of(path: Path) -> list[str]:
    """The names of the meshes that a config made small fits, without the reference."""
    mapping = read_yaml(path)
    register_objects(mapping, source=path.name)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        small = certified_mapping(
            mapping,
            Path(folder),
            num_samples=NUM_SAMPLES,
            num_updates=NUM_UPDATES,
        )
        num_ranks = build_config(small).trainer.num_devices
        sizes = {"num_samples": NUM_SAMPLES, "num_ranks": num_ranks}
        fitting = chosen_meshes(build(small["model"]), None, NUM_DEVICES, **sizes)
    return [name for name in fitting if name != reference_of(num_ranks)]


def _summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the table shows of a certificate's JSON."""
    verdicts = document["verdicts"]
    worst = {
        column: max(
            (
                check["error"]
                for verdict in verdicts
                for check in verdict["checks"]
                if check["quantity"].startswith(quantity)
            ),
            default=None,
        )
        for column, quantity in COLUMNS.items()
    }
    return {
        "passed": document["passed"],
        "same": [v["mesh"] for v in verdicts if v["passed"]],
        "by_float64": [v["mesh"] for v in verdicts if v["in_float64"] and v["passed"]],
        "differs": {v["mesh"]: v["place"] for v in verdicts if not v["passed"]},
        "worst": worst,
    }


def _write(results: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> None:
    table = Table("Certificates", HEADER, [_cells(result) for result in results])
    data = {
        "recipe": recipe({"devices": NUM_DEVICES, "samples": NUM_SAMPLES}),
        "certificates": [*results],
    }
    sections = [_INTRODUCTION, table, "\n".join(_notes(results))]
    write_report(NAME, [part for part in sections if part], data, options.out)


def _cells(result: Mapping[str, Any]) -> list[str]:
    if "error" in result:
        return [result["config"], *["" for _ in HEADER[1:-2]], *_times(result)]
    worst = result["worst"].values()
    return [
        result["config"],
        result["model"],
        str(len(result["meshes"])),
        str(len(result["same"])),
        str(len(result["by_float64"])),
        *("" if error is None else f"{error:.1e}" for error in worst),
        *_times(result),
    ]


def _times(result: Mapping[str, Any]) -> list[str]:
    """Seconds and CPU seconds; these were not taken of the oldest results."""
    times = (result["seconds"], result.get("cpu_seconds"))
    return ["" if seconds is None else f"{seconds:.0f}" for seconds in times]


def _notes(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The meshes of each config, and what differs."""
    for result in results:
        yield f"- {result['config']}: {', '.join(result['meshes'])}"
        if "error" in result:
            yield f"  - it does not run: {result['error']}"
        for mesh, place in result.get("differs", {}).items():
            yield f"  - {mesh} differs: {place}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certificates")
    add = parser.add_argument
    add("--configs", nargs="+", metavar="NAME", help="of configs/ (default: all)")
    add("--count", type=int, default=12, help="meshes of a config (default: 12)")
    add("--meshes", metavar="LIST", help="these meshes, as of credit-jax certify")
    add("--cache", metavar="DIR", help="folder of compiled programs")
    add_out_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
