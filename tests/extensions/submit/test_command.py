"""Jobs of PBS and SLURM: their scripts as text, a fake scheduler, and a real run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
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


def test_a_chain_of_pbs(submit: Any, tmp_path: Path) -> None:
    options = ("--cluster", "pbs", "--chain", "3", "--dry-run")
    code, text, _ = submit({"pbs": yaml.safe_load(PBS)}, *options)
    assert code == OK
    lines = text.splitlines()
    assert lines[:11] == [
        "#!/bin/bash -l",
        "#PBS -N wxformer_1deg_6hr_gen2",
        "#PBS -A NAML0001",
        "#PBS -q main",
        "#PBS -l select=8:ncpus=64:mpiprocs=4:ngpus=4:mem=480GB",
        "#PBS -l walltime=12:00:00",
        "#PBS -j oe",
        "#PBS -k eod",
        f"#PBS -o {tmp_path}/run/jobs/",
        "#PBS -r n",
        "",
    ]
    assert "conda activate credit-derecho" in lines
    command = "mpiexec -n 32 --ppn 4 --cpu-bind none python -m credit_jax train \\"
    start = lines.index(command)
    assert lines[start + 2 : start + 5] == [
        "    --resume if-any \\",
        "    --stop-after 11h50m0s \\",
        f"    --cache {tmp_path}/run/cache",
    ]
    after = [line for line in lines if line.startswith("# qsub")]
    assert len(after) == 3
    assert "depend" not in after[0]
    assert "-W depend=afterany:JOB2 " in after[2]
    assert not (tmp_path / "run").exists(), "a dry run writes nothing"


def test_a_job_of_slurm(submit: Any, tmp_path: Path) -> None:
    section = {"slurm": yaml.safe_load(SLURM)}
    code, text, _ = submit(section, "--cluster", "slurm", "--dry-run")
    assert code == OK
    directives = [ln[8:] for ln in text.splitlines() if ln.startswith("#SBATCH ")]
    assert directives[:9] == [
        "--job-name=credit_wb2_tiny",
        "--account=m5388",
        "--qos=debug",
        "--constraint=gpu",
        "--nodes=2",
        "--ntasks-per-node=4",
        "--cpus-per-task=16",
        "--gpus-per-node=4",
        "--time=00:20:00",
    ]
    assert "export NCCL_DEBUG=INFO" in text
    assert "srun --cpus-per-task=16 python -m credit_jax train \\" in text
    assert "--stop-after 0h18m0s" in text


def test_one_node_needs_no_launcher(submit: Any) -> None:
    section = {"pbs": {"ngpus": 4, "gpu_type": "h100", "modules": ["cuda", "nccl"]}}
    options = ("--cluster", "slurm", "--dry-run", "--nodes", "1", "--mem", "64G")
    code, text, _ = submit(section, *options, "--set", "trainer.epochs=3")
    assert code == OK
    assert "#SBATCH --gres=gpu:h100:4" in text
    assert "#SBATCH --mem=64G" in text
    assert "\nmodule load cuda nccl\n" in text
    assert f"\n{sys.executable} -m credit_jax train \\" in text
    assert "--set trainer.epochs=3" in text
    assert "srun" not in text
    _, text, _ = submit(section, *options, "--processes-per-node", "4")
    assert "srun --cpus-per-task=2 " in text
    _, text, _ = submit(section, *options, "--mode", "forecast")
    assert " -m credit_jax forecast \\" in text
    assert "    --resume \\" in text


def test_settings_of_the_section(submit: Any) -> None:
    """`--set` holds for the script, as for the run."""
    options = ("--set", "slurm.nodes=3", "--set", "slurm.walltime=01:30:00")
    section = {"slurm": yaml.safe_load(SLURM)}
    code, text, _ = submit(section, "--cluster", "slurm", "--dry-run", *options)
    assert code == OK
    assert "#SBATCH --nodes=3\n" in text
    assert "#SBATCH --time=01:30:00\n" in text


def test_words_of_the_command_are_those_of_the_user(tmp_path: Path) -> None:
    """Whatever a shell would make of them."""
    strange = 'it\'s $HOME; $(touch touched) `touch touched` "a" *'
    (folder := tmp_path / strange).mkdir()
    python = folder / "python"
    python.write_text('#!/bin/bash\nprintf "%s\\n" "$PWD" "$@"\n')
    python.chmod(0o700)
    words = ["train", "--set", strange, f"--set=--{strange}", "--cache", strange]
    section = JobSection(ngpus=0)
    job = BatchJob("pbs", section, words, folder, "train", folder, str(python), 1)
    script = tmp_path / "job.sh"
    script.write_text(script_text(job))
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(folder), "-m", "credit_jax", *words]
    assert job.ended.read_text() == "0\n"
    assert not [*tmp_path.rglob("touched")]


def refused(section: Any, options: Any, submit: Any) -> int:
    code, _, error = submit(section, "--cluster", "pbs", "--dry-run", *options)
    print(error, file=sys.stderr)
    return code


CASES.rows(
    refused,
    ({"pbs": {"conda": "$(touch x)"}}, ()),
    ({"pbs": {"conda": "--help"}}, ()),
    ({"pbs": {"modules": "gcc; touch /x"}}, ()),
    ({"pbs": {"mem": -5}}, ()),
    ({"pbs": {"mem": "lots"}}, ()),
    ({"pbs": {"nodes": 1e30}}, ()),
    ({"pbs": {"nodes": 1e6}}, ()),
    ({"pbs": {"job_name": "a\nb"}}, ()),
    ({}, ()),
    ({"pbs": {"walltim": "1:00:00"}}, ()),
    ({"pbs": {"walltime": "1 hour"}}, ()),
    ({"pbs": {"walltime": "0:00:00"}}, ()),
    ({"pbs": {"nodes": 0}}, ()),
    ({"pbs": {"qos": "a\n#SBATCH -A b"}}, ()),
    ({"pbs": {"constraint": "a b"}}, ()),
    ({"pbs": {}}, ("--set", "save_loc=/tmp/a b")),
    ({"pbs": {}}, ("--set", "save_loc=/tmp/a%j")),
    ({"pbs": {}}, ("--set", "save_loc=/tmp/a:b")),
    ({"pbs": {}}, ("--set", "save_loc=/a'b")),
    ({"pbs": {"project": "a; rm -rf b"}}, ()),
    ({"pbs": [1]}, ()),
    ({"pbs": {"nodes": 2}}, ("--set", "trainer.num_devices=1")),
    (
        {"pbs": {"gpu_type": "a100_80gb"}},
        ("--set", "model.dim=[512, 2048, 8192, 32768]"),
    ),
    ({"pbs": {}}, ("--chain", "0")),
)


def test_times() -> None:
    assert job_section({"pbs": {"walltime": 43200}}, "pbs", {}).walltime == "12:00:00"
    assert JobSection(walltime="00:20:00").seconds == 1200
    assert stop_after(1200) == "0h18m0s"
    assert JobSection(walltime="1-12:00:00").walltime == "36:00:00"


def test_numbers_of_yaml_and_other_names() -> None:
    numbers = {"slurm": {"project": 12345, "mem": 480}}
    assert job_section(numbers, "slurm", {}).mem == "480"
    other_names = {"pbs": {"account": "A", "gpus": 2, "partition": "gpu"}}
    found = job_section(other_names, "slurm", {"ngpus": 1})
    assert (found.project, found.ngpus, found.queue) == ("A", 1, "gpu")


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize("cluster", ["pbs", "slurm"])
def test_a_fake_scheduler(
    submit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    """The fake scheduler counts jobs, and refuses the third."""
    tools, log = tmp_path / "bin", tmp_path / "log"
    tools.mkdir()
    says = "$n.server" if cluster == "pbs" else "Submitted batch job $n"
    program(
        tools / {"pbs": "qsub", "slurm": "sbatch"}[cluster],
        f'echo "$@" >> {log}; n=$(wc -l < {log})\n'
        'if [ "$n" = 3 ]; then echo "over the limit" >&2; exit 1; fi\n'
        f'echo "{says}"',
    )
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    section = {cluster: {}}
    code, text, _ = submit(section, "--cluster", cluster, "--chain", "2")
    assert code == OK
    script, *jobs = (line.split()[1] for line in text.splitlines())
    assert jobs == (["1.server", "2.server"] if cluster == "pbs" else ["1", "2"])
    first, second = log.read_text().splitlines()
    assert first == script
    depends = {
        "pbs": "-W depend=afterany:1.server",
        "slurm": "--dependency=afterany:1",
    }
    assert second == f"{depends[cluster]} {script}"
    assert Path(script).with_suffix(".yml").read_text()
    code, _, text = submit(section, "--cluster", cluster)
    assert code == USER_ERROR
    assert "refuses the job: over the limit" in text
    (tools / {"pbs": "qsub", "slurm": "sbatch"}[cluster]).unlink()
    code, _, text = submit(section, "--cluster", cluster)
    assert code == USER_ERROR
    assert "is not on this machine" in text


@pytest.mark.parametrize("cluster", ["pbs", "slurm"])
def test_an_array_of_forecasts(submit: Any, cluster: str) -> None:
    options = ["--cluster", cluster, "--mode", "forecast", "--array", "8"]
    options += ["--chain", "2", "--options", "--members 4 --out 'my forecasts'"]
    code, text, _ = submit({cluster: {}}, *options, "--dry-run")
    assert code == OK
    directive = {"pbs": "#PBS -J 1-8", "slurm": "#SBATCH --array=1-8"}[cluster]
    number = {"pbs": "$PBS_ARRAY_INDEX", "slurm": "$SLURM_ARRAY_TASK_ID"}[cluster]
    lines = text.splitlines()
    assert directive in lines
    assert ("#PBS -r n" in lines, "#PBS -r y" in lines) == (False, cluster == "pbs")
    assert f'    --shard "{number}/8"' in lines
    assert "    --members 4 \\" in lines
    assert "    --out 'my forecasts' \\" in lines
    (ended,) = [line for line in lines if line.startswith("ended=")]
    assert ended.endswith(f".ended-{number}")
    assert "afterany" in lines[-1]
    code, _, error = submit({cluster: {}}, "--cluster", cluster, "--array", "8")
    assert code == USER_ERROR
    assert "training goes on by --chain" in error


def test_an_array_of_statistics_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs that were submitted are run one after the other."""
    write_world(tmp_path)
    program(tmp_path / "sbatch", f'echo "$@" >> {tmp_path}/log; echo job 7')
    python = program(
        tmp_path / "python",
        f'shift 3; cd {ROOT}; exec {sys.executable} -m credit_jax.preprocess "$@"',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", python)
    mapping = tiny_config(tmp_path, tmp_path / "run") | {"slurm": {}}
    files = [tmp_path / "new_mean.nc", tmp_path / "new_std.nc"]
    args = dict(zip(("mean_path", "std_path"), map(str, files), strict=True))
    mapping["preblocks"]["per_step"]["norm"]["args"] = args
    config = write_yaml(tmp_path / "config.yml", mapping)
    options = ["--cluster", "slurm", "--mode", "preprocess", "--array", "2"]
    assert main(["--config", config, *options]) == OK
    first, second = (tmp_path / "log").read_text().splitlines()
    assert second.startswith("--dependency=afterany:7 ")
    jobs = [(first, "1"), (first, "2"), (second.split()[1], "")]
    for script, number in jobs:
        assert not any(file.exists() for file in files)
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": number}
        subprocess.run(["bash", script], env=environment, check=True)
    assert all(file.exists() for file in files)


@pytest.mark.slow
def test_a_chain_runs_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: None
) -> None:
    """Job 1 stops at its time limit, job 2 resumes and ends, job 3 does nothing."""
    write_world(tmp_path)
    python = program(
        tmp_path / "python",
        f"shift 3; cd {ROOT}; export JAX_PLATFORMS=cpu\n"
        f"exec {sys.executable} -c '{PROGRAM}' credit_jax.cli.train \"$@\"",
    )
    queue = tmp_path / "qsub"
    program(queue, "echo 1.server")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", python)
    mapping = tiny_config(tmp_path, tmp_path / "run") | {
        "pbs": {"walltime": "0:00:01", "ngpus": 1}
    }
    config = write_yaml(tmp_path / "config.yml", mapping)
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", "none")
    assert main(["--config", config, "--cluster", "pbs", "--cache", cache]) == OK
    (script,) = (tmp_path / "run" / "jobs").glob("*.sh")

    def job() -> tuple[int, str]:
        done = subprocess.run(
            ["bash", script], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    # A fast machine trains this model in less than a second.
    assert "--stop-after 0h0m1s" in script.read_text()
    script.write_text(script.read_text().replace("0h0m1s", "0.1s"))
    code, text = job()
    assert code == RESUME, text
    assert "Stopped by --stop-after" in text
    script.write_text(script.read_text().replace("0.1s", "1h"))
    code, text = job()
    assert code == OK, text
    assert "Going on from" in text
    code, text = job()
    assert code == OK
    assert text == "nothing left to do: an earlier job ended with exit code 0\n"
