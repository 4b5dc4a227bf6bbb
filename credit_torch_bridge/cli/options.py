"""Options shared by several commands."""

from __future__ import annotations

import argparse
from pathlib import Path

from credit_jax.config.load import CONFIG_NAME


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--config`, which `config_file` reads."""
    parser.add_argument(
        "--config",
        "-c",
        metavar="FILE",
        help="CREDIT's YAML; default: model.yml beside the checkpoint",
    )


def add_drop_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--drop`: keys to leave out before a config is converted."""
    parser.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="KEY",
        help="leave a key of the config out by its dotted path, such as "
        "model.post_conf; repeatable",
    )


def config_file(option: str | None, checkpoint: Path) -> Path:
    """The given config, or `model.yml` in the folder of the checkpoint.

    Raises:
        FileNotFoundError: the checkpoint, or `model.yml` in its folder, does not exist.
    """
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
