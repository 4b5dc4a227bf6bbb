"""The commands of the bridge: convert, inspect, compare, config.

torch is imported when a command runs: `--help` does not need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from credit_jax.checkpoint.store import CHOICES
from credit_jax.cli.commands import (
    FAILED,
    OK,
    OVERRIDES,
    VERIFY,
    WEIGHTS,
    Command,
    CommandError,
    option,
    print_line,
)
from credit_jax.config import apply_overrides
from credit_jax.config.finetune import finetune_of
from credit_jax.config.load import CONFIG_NAME
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.config.yaml_file import read_yaml
from credit_jax.io.atomic import new_file, refuse_existing
from credit_jax.packages.package import open_package
from credit_jax.plan.finetune import kind_of
from credit_torch_bridge.config import convert

_CONFIG = "CREDIT's YAML; default: model.yml beside the checkpoint"
_DROP = (
    "leave a key of the config out by its dotted path, such as model.post_conf; "
    "repeatable"
)


class Convert(Command):
    """Convert a checkpoint from CREDIT to credit_jax, or back."""

    example = "--to jax --checkpoint RUN --out NEW_RUN"

    to: Literal["jax", "torch"] = option("format to write")
    config: str | None = option(_CONFIG, None, "FILE", short="-c")
    checkpoint: str = option("file or folder to convert", metavar="FILE")
    base: str | None = option("what adapters of a package belong to", None, "FILE")
    merge: bool = option(
        "refuse what has no adapters (LoRA); their sums are always the weights", False
    )
    out: str = option("folder to write; must not exist", metavar="DIR")
    weights_only: bool = option("leave out optimizer, schedule and position", False)
    weights: str | None = option(
        "the moving average, or the last weights, alone (default: all that there is, "
        "for training that goes on)",
        None,
        choices=CHOICES,
    )
    verify: bool = option(VERIFY, True)
    step: int | None = option(
        "with --to torch: the checkpoint; default: the newest", None
    )
    batches_per_epoch: int | None = option(
        "of the run in credit_jax, for schedules that count epochs; default: as in the "
        "config",
        None,
        "N",
    )
    drop: tuple[str, ...] = option(_DROP, (), "KEY")
    set: tuple[str, ...] = option(OVERRIDES, (), "KEY=VALUE")

    def run(self) -> int:
        """Converts a checkpoint or a run."""
        from credit_torch_bridge.checkpoint.convert_run import RunConversion
        from credit_torch_bridge.checkpoint.jax_checkpoint import read_run_config

        source, out = Path(self.checkpoint), Path(self.out).absolute()
        refuse_existing(out)
        config = (
            open_package(source, self.base).resolved()
            if self.config is None and kind_of(source) == "package"
            else config_file(self.config, source)
        )
        run_config = read_run_config(config, self.set)
        if self.drop and self.to == "jax":
            raise ValueError("--drop belongs to --to torch; use --set KEY=null")
        finetune = finetune_of(run_config.raw)
        if self.merge and not (self.base or (finetune and finetune.lora)):
            raise ValueError(
                f"--merge: {source} has no adapters (trainer.finetune.lora); leave it "
                "out"
            )
        names = ("weights_only", "weights", "step", "batches_per_epoch", "verify")
        options = {name: getattr(self, name) for name in (*names, "drop", "base")}
        conversion = RunConversion(run_config, source, out, **options)
        lines = conversion.to_jax() if self.to == "jax" else conversion.to_torch()
        for line in lines:
            print_line(line)
        print_line(f"written: {out}")
        return OK


class Inspect(Command):
    """List what a checkpoint holds, and what a conversion does to each key."""

    example = "--checkpoint RUN/checkpoint.pt"

    checkpoint: str = option("file or folder to look at", metavar="FILE")
    config: str | None = option(_CONFIG, None, "FILE", short="-c")

    def run(self) -> int:
        """Prints the contents of a checkpoint."""
        from credit_torch_bridge.checkpoint.convert_run import contents

        path = Path(self.checkpoint)
        for line in contents(path, lambda: config_file(self.config, path)):
            print_line(line)
        return OK


class Compare(Command):
    """Run serial CREDIT and credit_jax side by side; exit code 1 if they differ."""

    example = "--checkpoint RUN/checkpoint.pt --parallelism tensor=2,domain=2"

    config: str | None = option(_CONFIG, None, "FILE", short="-c")
    checkpoint: str = option("of PyTorch, or a run of credit_jax", metavar="FILE")
    parallelism: str = option(
        "the mesh of credit_jax: tensor=2,domain=2", "data=none", "KEY=N,..."
    )
    weights: str | None = option(WEIGHTS, None, choices=CHOICES)
    batches: int = option("inputs to compare", 1, "N")
    seed: int = option("of the inputs", 0)

    def run(self) -> int:
        """Compares and prints the errors."""
        from credit_torch_bridge.compare.comparison import compare_with_credit

        path = Path(self.checkpoint)
        comparison = compare_with_credit(
            config_file(self.config, path),
            path,
            parallelism=parse_parallelism(self.parallelism),
            batches=self.batches,
            seed=self.seed,
            weights=self.weights,
        )
        for line in comparison.lines():
            print_line(line)
        if not comparison.within_tolerance:
            message = "credit_jax and CREDIT differ by more than rounding"
            raise CommandError(message, FAILED)
        return OK


class Config(Command):
    """Convert a config file of CREDIT to credit_jax, or one for CREDIT's gen2."""

    example = "model.yml --to jax --out new.yml"

    file: str = option(
        "YAML file to convert; what it is, is seen in it",
        metavar="FILE",
        positional=True,
    )
    to: str = option(
        "gen2 of CREDIT, or jax: gen2 that credit_jax trains", choices=convert.TARGETS
    )
    out: str = option("file to write; not there yet", metavar="FILE")
    level_coord: str = option(
        "level coordinate of the files, for gen1, which does not say it",
        convert.LEVEL_COORD,
        "NAME",
    )
    drop: tuple[str, ...] = option(_DROP, (), "KEY")
    set: tuple[str, ...] = option(OVERRIDES, (), "KEY=VALUE")

    def run(self) -> int:
        """Converts a file."""
        path, out = Path(self.file), Path(self.out)
        refuse_existing(out)
        mapping = read_yaml(path)
        changed = apply_overrides(mapping, self.set)
        config, report = convert.convert_config(
            changed, to=self.to, level_coord=self.level_coord, drop=self.drop
        )
        if report.unchanged and not self.set:
            text = path.read_bytes()
            line = f"{path}: is {self.to} already; written as it is"
        else:
            text = convert.dump(config).encode()
            line = f"{path}: {report.found} to {report.target}"
        with new_file(out) as partial:
            partial.write_bytes(text)
        for each in (line, *(f"  {line}" for line in report.lines())):
            print_line(each)
        print_line(f"written: {out}")
        return OK


def config_file(option: str | None, checkpoint: Path) -> Path:
    """The given config, or `model.yml` in the folder of the checkpoint."""
    if option is not None:
        return Path(option)
    if not checkpoint.exists():
        raise FileNotFoundError(f"{checkpoint}: no such file or folder")
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    if not (folder / CONFIG_NAME).is_file():
        raise FileNotFoundError(
            f"{folder}: no {CONFIG_NAME} beside the checkpoint; name the config with "
            "--config"
        )
    return folder / CONFIG_NAME
