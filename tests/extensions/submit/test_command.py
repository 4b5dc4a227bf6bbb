"""Jobs of PBS and SLURM: their scripts as text, a fake scheduler, and a real run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
import yaml

from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.extensions.submit.command import BatchJob, main, script_text, stop_after
from credit_jax.extensions.submit.job_section import JobSection, job_section
from credit_jax.parallel.processes.watch import RESUME
from tests.data.world import write_world
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support.processes import PROGRAM, ROOT
from tests.training.conftest import tiny_model
from tests.training.tiny import tiny_config, write_yaml

CASES = Cases("submit")

__all__ = ["tiny_model"]

# As in CREDIT's config/gen_2/examples: example-end-to-end.yml, wb2_perlmutter_tiny.yml.
PBS = """
conda: "credit-derecho"
project: "NAML0001"
job_name: "wxformer_1deg_6hr_gen2"
walltime: "12:00:00"
nodes: 8
ncpus: 64
ngpus: 4
mem: '480GB'
queue: 'main'
"""
SLURM = """
conda: "/global/common/software/m5388/djgagne/envs/credit-perlmutter"
project: "m5388"
job_name: "credit_wb2_tiny"
nodes: 2
ngpus: 4
ncpus: 64
walltime: "00:20:00"
qos: "debug"
constraint: "gpu"
env_setup:
  - "export NCCL_DEBUG=INFO"
"""


@pytest.fixture
def submit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command on a config with a section; (exit code, stdout, stderr)."""

    def run(section: dict[str, Any], *options: str) -> tuple[int, str, str]:
        config = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
        config["save_loc"] = str(tmp_path / "run")
        config["trainer"] |= {"num_devices": None, "parallelism": {"data": "ddp"}}
        path = write_yaml(tmp_path / "config.yml", config | section)
        code = main(["--config", path, *options])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


# Whole scripts.


SECTIONS: dict[str, dict[str, Any]] = {
    "pbs": {"pbs": yaml.safe_load(PBS)},
    "slurm": {"slurm": yaml.safe_load(SLURM)},
    "one": {"pbs": {"ngpus": 4, "gpu_type": "h100", "modules": ["cuda", "nccl"]}},
    "empty": {"pbs": {}, "slurm": {}},
}


def script(section: str, options: str, submit: Any, tmp_path: Path) -> str:
    words = [word.replace("_", " ") for word in options.split()]
    code, text, error = submit(SECTIONS[section], *words, "--dry-run")
    assert code == OK, error
    assert not (tmp_path / "run").exists(), "a dry run writes nothing"
    return re.sub(r"_\d{8}_\d{6}", "_DATE", text.replace(sys.executable, "python"))


ONE = "--cluster slurm --nodes 1 --mem 64G"
ARRAY = "--mode forecast --array 8 --chain 2 --options --members_4_--out_'my_forecasts'"
CASES.rows(
    script,
    ("pbs", "--cluster pbs --chain 3"),
    ("slurm", "--cluster slurm"),
    # `--set` holds for the script, as for the run.
    ("slurm", "--cluster slurm --set slurm.nodes=3 --set slurm.walltime=01:30:00"),
    # One node needs no launcher.
    ("one", f"{ONE} --set trainer.epochs=3"),
    ("one", f"{ONE} --processes-per-node 4"),
    ("one", f"{ONE} --mode forecast"),
    ("empty", f"--cluster pbs {ARRAY}"),
    ("empty", f"--cluster slurm {ARRAY}"),
    name="script",
)


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_words_of_the_command_are_those_of_the_user(tmp_path: Path) -> None:
    """Whatever a shell would make of them."""
    strange = 'it\'s $HOME; $(touch touched) `touch touched` "a" *'
    (folder := tmp_path / strange).mkdir()
    python = program(folder / "python", 'printf "%s\\n" "$PWD" "$@"')
    words = ["train", "--set", strange, f"--set=--{strange}", "--cache", strange]
    section = JobSection(ngpus=0)
    job = BatchJob("pbs", section, words, folder, "train", folder, python, 1)
    script = tmp_path / "job.sh"
    script.write_text(script_text(job))
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(folder), "-m", "credit_jax", *words]
    assert job.ended.read_text() == "0\n"
    assert not [*tmp_path.rglob("touched")]


def test_values_of_sections() -> None:
    def found(section: Any, cluster: str = "pbs", **options: Any) -> Any:
        return job_section({"pbs": section}, cluster, options)

    assert found({"walltime": 43200}).walltime == "12:00:00"
    assert JobSection(walltime="00:20:00").seconds == 1200
    assert stop_after(1200) == "0h18m0s"
    assert JobSection(walltime="1-12:00:00").walltime == "36:00:00"
    assert found({"project": 12345, "mem": 480}).mem == "480", "numbers of YAML"
    other_names = {"account": "A", "gpus": 2, "partition": "gpu"}
    other = found(other_names, "slurm", ngpus=1)
    assert (other.project, other.ngpus, other.queue) == ("A", 1, "gpu")


def refused(section: Any, options: Any, submit: Any) -> int:
    code, _, error = submit(section, "--cluster", "pbs", *options)
    print(error, file=sys.stderr)
    return code


LARGE = "model.dim=[512, 2048, 8192, 32768]"
CASES.rows(
    lambda pbs, submit: refused({"pbs": pbs}, ("--dry-run",), submit),
    ({"conda": "$(touch x)"},),
    ({"conda": "--help"},),
    ({"modules": "gcc; touch /x"},),
    ({"mem": -5},),
    ({"mem": "lots"},),
    ({"nodes": 1e30},),
    ({"nodes": 1e6},),
    ({"nodes": 0},),
    ({"job_name": "a\nb"},),
    ({"walltim": "1:00:00"},),
    ({"walltime": "1 hour"},),
    ({"walltime": "0:00:00"},),
    ({"qos": "a\n#SBATCH -A b"},),
    ({"constraint": "a b"},),
    ({"project": "a; rm -rf b"},),
    ([1],),
    name="pbs",
)
CASES.rows(
    refused,
    ({}, ("--dry-run",)),
    ({"pbs": {}}, ("--dry-run", "--set", "save_loc=/tmp/a b")),
    ({"pbs": {}}, ("--dry-run", "--set", "save_loc=/tmp/a%j")),
    ({"pbs": {}}, ("--dry-run", "--set", "save_loc=/tmp/a:b")),
    ({"pbs": {}}, ("--dry-run", "--set", "save_loc=/a'b")),
    ({"pbs": {"nodes": 2}}, ("--dry-run", "--set", "trainer.num_devices=1")),
    ({"pbs": {"gpu_type": "a100_80gb"}}, ("--dry-run", "--set", LARGE)),
    ({"pbs": {}}, ("--dry-run", "--chain", "0")),
    ({"pbs": {}}, ("--array", "8")),
)


# Jobs that are submitted.


@pytest.mark.parametrize("cluster", ["pbs", "slurm"])
def test_a_fake_scheduler(
    submit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    """The fake scheduler counts jobs, and refuses the third."""
    log, says = tmp_path / "log", "Submitted batch job $n"
    tool, depends = "sbatch", "--dependency=afterany:1"
    first_job, second_job = "1", "2"
    if cluster == "pbs":
        tool, depends, says = "qsub", "-W depend=afterany:1.server", "$n.server"
        first_job, second_job = "1.server", "2.server"
    (tmp_path / "bin").mkdir()
    program(
        tmp_path / "bin" / tool,
        f'echo "$@" >> {log}; n=$(wc -l < {log})\n'
        'if [ "$n" = 3 ]; then echo "over the limit" >&2; exit 1; fi\n'
        f'echo "{says}"',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    code, text, _ = submit({cluster: {}}, "--cluster", cluster, "--chain", "2")
    assert code == OK
    script, *jobs = (line.split()[1] for line in text.splitlines())
    assert jobs == [first_job, second_job]
    assert log.read_text().splitlines() == [script, f"{depends} {script}"]
    assert Path(script).with_suffix(".yml").read_text()
    for message in ("refuses the job: over the limit", "is not on this machine"):
        code, _, text = submit({cluster: {}}, "--cluster", cluster)
        assert code == USER_ERROR
        assert message in text
        (tmp_path / "bin" / tool).unlink(missing_ok=True)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A data set, programs in place of Python and of a scheduler; submits a config."""
    write_world(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def start(python: str, tool: str, says: str, raw: Any, *options: str) -> None:
        run = f'exec {sys.executable} {python} "$@"'
        text = f"shift 3; cd {ROOT}; export JAX_PLATFORMS=cpu\n{run}"
        monkeypatch.setattr(sys, "executable", program(tmp_path / "python", text))
        program(tmp_path / tool, f'echo "$@" >> {tmp_path}/log; echo {says}')
        config = write_yaml(tmp_path / "config.yml", raw)
        assert main(["--config", config, *options]) == OK

    return start


def test_an_array_of_statistics_is_merged(started: Any, tmp_path: Path) -> None:
    """The jobs that were submitted are run one after the other."""
    mapping = tiny_config(tmp_path, tmp_path / "run") | {"slurm": {}}
    files = [tmp_path / "new_mean.nc", tmp_path / "new_std.nc"]
    args = dict(zip(("mean_path", "std_path"), map(str, files), strict=True))
    mapping["preblocks"]["per_step"]["norm"]["args"] = args
    options = ["--cluster", "slurm", "--mode", "preprocess", "--array", "2"]
    started("-m credit_jax.preprocess", "sbatch", "job 7", mapping, *options)
    first, second = (tmp_path / "log").read_text().splitlines()
    assert second.startswith("--dependency=afterany:7 ")
    jobs = [(first, "1"), (first, "2"), (second.split()[1], "")]
    for script, number in jobs:
        assert not any(file.exists() for file in files)
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": number}
        subprocess.run(["bash", script], env=environment, check=True)
    assert all(file.exists() for file in files)


ARRAYS = (ROOT / "docs" / "cluster.md").read_text()


def test_the_indexed_job_of_the_page(tmp_path: Path) -> None:
    """Index I from 0 makes part I + 1 of as many as there are completions."""
    (text,) = re.findall(r"```yaml\n(apiVersion: batch.*?)```", ARRAYS, re.DOTALL)
    spec = yaml.safe_load(text)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    program(tmp_path / "credit-jax", 'echo "$@"')
    command = [*container["command"], *container["args"]]
    for index in (0, 99):
        environment = {"PATH": f"{tmp_path}:/bin", "JOB_COMPLETION_INDEX": str(index)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.stdout.endswith(f"--shard {index + 1}/{spec['completions']}\n")


@pytest.mark.slow
def test_the_snakefile_of_the_page(tmp_path: Path) -> None:
    """With Snakemake; a job fails at first. Moments are those of one job."""
    subprocess.run([ROOT / "tools" / "environment.sh", "snakemake"], check=True)
    write_world(tmp_path)
    mapping = tiny_config(tmp_path, tmp_path / "run")

    def fitted(name: str) -> dict[str, str]:
        files = {k: str(tmp_path / f"{name}_{k}.nc") for k in ("mean", "std")}
        args = {f"{k}_path": file for k, file in files.items()}
        mapping["preblocks"]["per_step"]["norm"]["args"] = args
        write_yaml(tmp_path / "model.yml", mapping)
        return files

    main_program = Path(sys.executable).with_name("credit-jax")
    alone = fitted("alone")
    command = [main_program, "preprocess", "--config", tmp_path / "model.yml"]
    subprocess.run(command, check=True, capture_output=True)
    parts = fitted("parts")
    text = f'case "$*" in *3/4*) mkdir "{tmp_path}/once" && exit 1 ;; esac\n'
    program(tmp_path / "credit-jax", f'{text}exec {main_program} "$@"')
    (page,) = re.findall(r"```python\n(N = 16\n.*?)```", ARRAYS, re.DOTALL)
    (tmp_path / "Snakefile").write_text(page.replace("N = 16", "N = 4"))
    run = [ROOT / ".cache" / "snakemake" / "bin" / "snakemake", "--cores", "2"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment["JAX_PLATFORMS"] = "cpu"
    for code in (1, 0):
        options: Any = {"cwd": tmp_path, "env": environment, "capture_output": True}
        done = subprocess.run([*run, "--keep-going"], text=True, **options)
        assert done.returncode == code, done.stderr
        assert (tmp_path / "merged").exists() == (code == 0)
    for kind, file in parts.items():
        with xr.open_dataset(alone[kind]) as one, xr.open_dataset(file) as merged:
            xr.testing.assert_allclose(merged, one, rtol=1e-12)


@pytest.mark.slow
def test_a_chain_runs_to_its_end(
    started: Any, tmp_path: Path, tiny_model: None
) -> None:
    """Job 1 stops at its time limit, job 2 resumes and ends, job 3 does nothing."""
    section = {"pbs": {"walltime": "0:00:01", "ngpus": 1}}
    mapping = tiny_config(tmp_path, tmp_path / "run") | section
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", "none")
    options = ("--cluster", "pbs", "--cache", cache)
    python = f"-c '{PROGRAM}' credit_jax.cli.train"
    started(python, "qsub", "1.server", mapping, *options)
    (script,) = (tmp_path / "run" / "jobs").glob("*.sh")
    assert "--stop-after 0h0m1s" in script.read_text()
    # A fast machine trains this model in less than a second.
    for before, limit, expected, said in (
        ("0h0m1s", "0.1s", RESUME, "Stopped by --stop-after"),
        ("0.1s", "1h", OK, "Going on from"),
        ("1h", "1h", OK, "nothing left to do: an earlier job ended with exit code 0\n"),
    ):
        script.write_text(script.read_text().replace(before, limit))
        done = subprocess.run(["bash", script], capture_output=True, text=True)
        assert done.returncode == expected, done.stdout + done.stderr
        assert said in done.stdout + done.stderr
