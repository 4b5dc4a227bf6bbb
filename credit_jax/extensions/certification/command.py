"""Certify a config: `python -m credit_jax.certify --config F --out PAGE`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import yaml

from credit_jax.cli.commands import FAILED, OK, ConfigOptions, option, print_line
from credit_jax.config import apply_overrides, build_config, dump_config
from credit_jax.config.yaml_file import read_yaml
from credit_jax.extensions.certification.certify import (
    Certificate,
    Job,
    Judge,
    MeshVerdict,
)
from credit_jax.extensions.certification.measure import FIRST
from credit_jax.extensions.certification.processes import Processes, is_simulated
from credit_jax.extensions.certification.small_config import (
    MAX_ACCUMULATED,
    certified_mapping,
    dims_of_config,
    fit_scalers,
    for_any_mesh,
    write_files,
)
from credit_jax.extensions.certification.subject import (
    MAX_DEVICES,
    NUM_SAMPLES,
    NUM_STEPS,
    NUM_UPDATES,
    ONE_DEVICE,
    chosen_meshes,
    dims_of,
    name_of,
    reference_of,
)
from credit_jax.extensions.certification.verdict import (
    FLOAT32,
    FLOAT64,
    NARROW,
    Check,
    vanishing,
)
from credit_jax.extensions.plots.html import (
    Cell,
    Part,
    TableRow,
    page_of_sections,
    part,
)
from credit_jax.io.atomic import new_file, refuse_existing
from credit_jax.io.digests import record_of
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build, parse_model
from credit_jax.packages.package import open_artifact
from credit_jax.parallel.compiler import CACHE_HELP
from credit_jax.plan import plan_run


def page_of(certificate: Certificate) -> str:
    """Returns the text of the page."""
    # Those of any mesh that runs; all in a dtype have the same quantities, bounds.
    checks = max((v.checks for v in certificate.verdicts), key=len, default=())
    quantities = [check.quantity for check in checks]
    columns = [("mesh", True), ("verdict", True)]
    columns += [(quantity, False) for quantity in quantities]
    rows = [*_rows(certificate, quantities)]
    differing = {v.mesh: v.place for v in certificate.verdicts if v.place}
    credit = "\n".join(certificate.credit)
    bounds = {
        check.quantity: f"{check.bound:.0e}" if check.bound else "the same bits"
        for check in checks
    }
    texts = [certificate.bounds.origin]
    if certificate.vanishing:
        texts.append(
            "Left out of the change of weights, because their gradient is 0 but for "
            f"rounding: {', '.join(certificate.vanishing)}."
        )
    caption = "errors by mesh"
    sections: dict[str, list[Part]] = {
        "Meshes": [
            part("table", id="meshes", columns=columns, rows=rows, caption=caption)
        ],
        "Places that differ": [part("definitions", pairs=differing)] * bool(differing),
        "Serial CREDIT": [part("pre", text=credit)] * bool(credit),
        "Bounds": [
            part("definitions", pairs=bounds),
            *(part("paragraph", text=text) for text in texts),
        ],
        "Not certified": [
            part("paragraph", text=line) for line in certificate.not_certified
        ],
        "Provenance": [part("definitions", pairs=certificate.provenance)],
    }
    title = f"Certificate: {certificate.subject}"
    broken = [v.mesh for v in certificate.verdicts if not v.passed]
    broken += [] if certificate.credit_passed else ["serial CREDIT"]
    text = f"Not passed: {', '.join(broken)}."
    if not broken:
        count = meshes_text(len(certificate.verdicts), "give")
        text = f"Passed: {count} what mesh {certificate.reference} gives."
    text += (
        " Compared were forecasts, losses, every gradient, the weights after some "
        "updates, the state of the model, a checkpoint written on one mesh and "
        "restored on another, and what a run logs that goes on from it. Errors are "
        "relative, in the L2 norm; 0 means the same bits."
    )
    return page_of_sections(title, text, sections)


def meshes_text(number: int, verb: str = "") -> str:
    """A number of meshes, with a verb, in the plural unless it is one.

    >>> meshes_text(1, "give"), meshes_text(2, "give"), meshes_text(2)
    ('1 mesh gives', '2 meshes give', '2 meshes')
    """
    noun, ending = ("mesh", "s") if number == 1 else ("meshes", "")
    return f"{number} {noun} {verb}{ending}" if verb else f"{number} {noun}"


def _rows(certificate: Certificate, quantities: Sequence[str]) -> Iterator[TableRow]:
    def row(name: str, verdict: MeshVerdict, checks: Sequence[Check]) -> TableRow:
        cells = {check.quantity: _cell(check) for check in checks}
        text = "passed" if verdict.passed else "differs"
        text += " in float64" if verdict.in_float64 and verdict.checks else ""
        errors = [cells.get(quantity, Cell("")) for quantity in quantities]
        return TableRow(name, [Cell(text, kind="text"), *errors])

    for verdict in certificate.verdicts:
        if verdict.checks or not verdict.in_float64:
            yield row(verdict.mesh, verdict, verdict.checks)
        if verdict.in_float64:
            yield row(f"{verdict.mesh}, float64", verdict, verdict.in_float64)


def _cell(check: Check) -> Cell:
    origin = f" ({check.where})" if check.where and not check.passed else ""
    error = f"{check.error:.1e}{origin}" if check.error else "0"
    bound = f" {'≤' if check.passed else '>'} {check.bound:.0e}" if check.bound else ""
    return Cell(error + bound, check.error)


_NOT_CERTIFIED = (
    f"meshes of more than {MAX_DEVICES} devices, and several processes",
    f"more than {NUM_STEPS} steps of a forecast, {MAX_ACCUMULATED} micro-batches of an "
    "update, or some updates of a run",
    "sums that accelerators make in another order, and their fused attention",
    f"in 16 bits, what changes no number of a log by {NARROW:.0%}",
)
_PACKAGES = ("credit-jax", "jax", "jaxlib", "flax", "optax", "numpy", "torch")


class Certify(ConfigOptions):
    """Prove on this machine that a config gives the same numbers on every mesh.

    The exit code is 1 if it does not.
    """

    example = "--config configs/tp2_domain2.yaml --out certificate.html"

    out: str = option("the page, HTML; JSON beside it", metavar="FILE")
    meshes: str = option(
        "all, or names such as fsdp2xdomain3,tp2 (docs/certificate.md)", "all", "LIST"
    )
    devices: int = option("largest number of devices", 8, ge=1)
    full: bool = option(
        "the config as it is, on its own data; by default a small grid, narrow layers "
        "and random data",
        False,
    )
    checkpoint: str | None = option(
        "a run of credit_jax whose weights are taken; with --full", None, "DIR"
    )
    x64: bool = option("in float64, to 1e-12", False)
    against: Literal["credit"] | None = option(
        "compare one device with serial CREDIT, too; needs the bridge and CREDIT", None
    )
    processes: int | None = option(
        "at a time (default: the cores; 1 on accelerators)", None, "N", ge=1
    )
    cache: str | None = option(CACHE_HELP, None, "DIR")

    def run(self) -> int:
        """Certifies a config and writes the page; 0 if all meshes give the same."""
        out, json_out = Path(self.out), Path(self.out).with_suffix(".json")
        for output in (out, json_out):
            refuse_existing(output)
        if self.checkpoint and not self.full:
            raise ValueError(
                "--checkpoint has the weights of the whole model, and by default a "
                "certificate is of a small one; add --full"
            )
        if not out.parent.is_dir():
            raise ValueError(f"--out: there is no folder {out.parent}; make it first")
        weights = None if self.checkpoint is None else open_artifact(self.checkpoint)
        names = None if self.meshes == "all" else self.meshes.split(",")
        for name in names or ():
            dims_of(name)
        mapping = apply_overrides(read_yaml(self.config), self.set)
        config = build_config(mapping, source=self.config)
        parse_model(config.model)
        mapping = dump_config(config)
        for note in [] if weights is None else weights.compare(config):
            print_line(f"note: {note}", "yellow")
        with tempfile.TemporaryDirectory() as folder:
            # Of the config, unless it is too large to be simulated.
            dims = dims_of_config(config)
            mesh = name_of(dims) if dims.world_size <= MAX_DEVICES else ONE_DEVICE
            certificate = _certified(self, mapping, names, mesh, Path(folder))
        if weights is not None:
            kind = "average of the weights" if weights.average else "weights"
            text = f"{self.checkpoint}, step {weights.step}, {kind}, SHA-256 "
            facts = {**certificate.provenance, "checkpoint": text + weights.digest}
            certificate = replace(certificate, provenance=facts)
        with new_file(out) as partial:
            partial.write_text(page_of(certificate), encoding="utf-8")
        with new_file(json_out) as partial:
            partial.write_text(json.dumps(certificate.to_json(), indent=1) + "\n")
        for line in certificate.credit:
            print_line(line)
        if not certificate.passed:
            print_line(f"not passed: {out}", "bold red")
            return FAILED
        count = meshes_text(len(certificate.verdicts), "give")
        reference = certificate.reference
        reference = "one device" if reference == ONE_DEVICE else reference
        print_line(f"OK: {count} what {reference} gives: {out}", "bold green")
        return OK


main = Certify.main


def small_config(
    mapping: Mapping[str, Any], folder: Path, num_samples: int = NUM_SAMPLES
) -> dict[str, Any]:
    """A small config with its data, whose forecast has several steps if it can."""
    sizes = {"num_samples": num_samples, "num_updates": NUM_UPDATES}
    small = certified_mapping(mapping, folder, **sizes)
    with contextlib.chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        config = build_config(small)
        write_files(config)
        fit_scalers(config)
        plan_run(config, num_devices=config.trainer.num_devices or 1, begins=False)
    return small


def write_plain(mapping: Mapping[str, Any], path: Path) -> Path:
    """Writes a config of any types as YAML; returns the path."""
    plain = json.loads(json.dumps(mapping, default=str))
    path.write_text(yaml.safe_dump(plain, sort_keys=False))
    return path


def _certified(
    args: Certify,
    mapping: Mapping[str, Any],
    names: list[str] | None,
    mesh: str,
    folder: Path,
) -> Certificate:
    """The certificate of a config on some meshes, and the one that it names itself."""
    num_samples = math.lcm(NUM_SAMPLES, dims_of(mesh).batch_size)
    if args.full:
        sizes = {"num_samples": num_samples, "num_updates": NUM_UPDATES}
        mapping = for_any_mesh(mapping, **sizes)
        config = build_config(mapping, source=args.config)
        plan_run(config, num_devices=config.trainer.num_devices or 1, begins=False)
    else:
        mapping = small_config(mapping, folder, num_samples)
        config = build_config(mapping)
    path = write_plain(mapping, folder / "config.yml")
    model_def, num_ranks = build(config.model), config.trainer.num_devices
    reference, not_certified = reference_of(num_ranks), _NOT_CERTIFIED
    sizes = {"num_samples": num_samples, "num_ranks": num_ranks}
    chosen = chosen_meshes(model_def, names, args.devices, **sizes)
    if names is None and mesh not in chosen:
        try:
            chosen += chosen_meshes(model_def, [mesh], MAX_DEVICES, **sizes)
        except ValueError as error:
            not_certified = (f"the mesh of the config: {error}", *not_certified)
    meshes = [name for name in chosen if name != reference]
    if not meshes:
        raise ValueError(
            f"--meshes: none is left beside {reference} on {args.devices} devices; "
            "name others, or take more --devices"
        )
    # As many as there are cores, and one for accelerators, which it takes whole.
    at_once = args.processes or ((os.cpu_count() or 1) if is_simulated() else 1)
    at_once = min(at_once, len(meshes))
    runner = Processes(
        (path, args.checkpoint, args.cache),
        folder,
        num_devices=max(dims_of(name).world_size for name in (reference, *meshes)),
        at_once=at_once,
        cwd=None if args.full else folder,
    )
    job = Job(reference, reference, folder, args.x64)
    judge = Judge(runner, job)

    def judged(mesh: str) -> MeshVerdict:
        verdict = judge(mesh)
        print_line("\n".join(verdict.lines()))
        return verdict

    with contextlib.closing(runner), ThreadPoolExecutor(at_once) as pool:
        count = meshes_text(len(meshes))
        print_line(f"{count} beside {reference}, {at_once} at a time")
        verdicts = tuple(pool.map(judged, meshes))
        expected = judge.expected()
    run = job.runs / reference / FIRST
    credit = _against_credit(path, run) if args.against else ()
    size = "as it is" if args.full else "made small"
    return Certificate(
        f"{Path(args.config).name}, {config.model['type']}, {size}",
        reference,
        FLOAT64 if args.x64 else FLOAT32,
        verdicts,
        credit=tuple(credit[1:]),
        credit_passed=not credit or credit[0] == "0",
        vanishing=tuple(vanishing(expected)),
        not_certified=not_certified,
        provenance=_provenance(args, model_def),
    )


def _against_credit(config: Path, run_folder: Path) -> tuple[str, ...]:
    """The exit code, then the lines, of the bridge's comparison with serial CREDIT."""
    command = [sys.executable, "-m", "credit_torch_bridge", "compare"]
    command += ["--config", str(config), "--checkpoint", str(run_folder)]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    if ended.returncode not in (OK, FAILED):
        lines = (ended.stderr or ended.stdout).strip().splitlines() or [""]
        return (str(ended.returncode), "not compared with CREDIT:", lines[-1])
    return (str(ended.returncode), *ended.stdout.strip().splitlines())


def _provenance(args: Certify, model_def: ModelDef) -> dict[str, str]:
    # By `credit-jax certify` or by `python -m credit_jax.certify`.
    options = sys.argv[2:] if sys.argv[1:2] == ["certify"] else sys.argv[1:]
    facts = {
        "command": "credit-jax certify " + shlex.join(options),
        "config": f"{args.config}, SHA-256 {record_of(Path(args.config)).sha256}",
        "parameters": str(model_def.num_parameters),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "Python": platform.python_version(),
    }
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            facts[name] = version(name)
    return facts
