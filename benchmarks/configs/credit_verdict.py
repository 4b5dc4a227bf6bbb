"""What CREDIT itself does with a config, as far as it can be tried without data.

Its parser or the checks of `train_gen2`, the trainer's name, the model on torch's
device "meta", and one forward of the channels that the config names, whose result goes
into a loss. Each is CREDIT's own code.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml

from benchmarks.configs.survey import ENVIRONMENT
from credit_torch_bridge.compare.credit_import import import_credit
from credit_torch_bridge.config.convert import GEN2, kind_of

TAKES = "takes it"


def credit_verdict(path: Path) -> str:
    """One sentence: CREDIT takes a config, or its reason not to.

    Args:
        path: of the YAML.
    """
    printed = io.StringIO()
    try:
        with open(path) as file:
            config = yaml.load(file, Loader=yaml.FullLoader)
        with _quiet(printed), mock.patch.dict(os.environ, ENVIRONMENT):
            _try(config)
    except FileNotFoundError:
        return TAKES  # as far as can be seen without its files
    except (Exception, SystemExit) as error:
        if str(error) == "No active exception to reraise":
            return printed.getvalue().splitlines()[-1]
        return _sentence(error)
    return TAKES


@contextmanager
def _quiet(printed: io.StringIO) -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    named = isinstance(error, AssertionError | ValueError | RuntimeError) and text
    text = text if named else f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else text[:197] + "..."


def _try(config: dict[str, Any]) -> None:
    """Raises what CREDIT raises."""
    try:
        gen2 = kind_of(config) == GEN2
    except ValueError:
        gen2 = False  # its gen1 programs say what is missing
    _try_gen2(config) if gen2 else _try_gen1(config)


def _try_gen1(config: dict[str, Any]) -> None:
    parser = import_credit("parser")
    parsed = parser.credit_main_parser(
        copy.deepcopy(config), parse_training=True, parse_predict=False
    )
    import_credit("trainers").load_trainer(copy.deepcopy(parsed))
    if parsed["trainer"].get("ensemble_size", 1) == 1:
        _score_one_member(parsed["loss"]["training_loss"])
    data = parsed["data"]
    if "datasets" in data:
        _forward(parsed, None, None)
        return
    levels = len(data["variables"]) * parsed["model"].get("levels", 1)
    lists = ("surface", "static", "dynamic_forcing", "forcing")
    inputs = levels + sum(len(data.get(f"{name}_variables", [])) for name in lists)
    outputs = levels + len(data["surface_variables"] + data["diagnostic_variables"])
    _forward(parsed, inputs, outputs)


def _score_one_member(name: str) -> None:
    """Raises if a loss of one member is no number."""
    losses = import_credit("losses")
    if not losses.is_crps_loss(name):
        return
    member = torch.ones(1, 1, 1, 2, 2)
    if losses._load_loss_entry(name)(reduction="none")(member, member).isnan().any():
        raise ValueError(f"{name} of one member is NaN")


def _try_gen2(config: dict[str, Any]) -> None:
    losses = import_credit("losses")
    name = losses.effective_loss_name(config["loss"])
    size = int(config["trainer"].get("ensemble_size", 1))
    if losses.is_crps_loss(name) and size <= 1:
        raise ValueError(
            f"{name} is an ensemble CRPS loss and requires trainer.ensemble_size > 1"
        )
    import_credit("parallel.mesh").parse_parallelism_conf(config)
    valid = config.get("validation_data") or config["data"]
    missing = [key for key in config["data"] if key not in valid and key != "source"]
    if missing:
        raise ValueError(f"validation_data is missing keys: {', '.join(missing)}")
    import_credit("trainers").load_trainer(copy.deepcopy(config))
    for section in ("preblock", "postblock"):
        build = getattr(import_credit(section), f"build_{section}s")
        build(config | {f"{section}s": _without_blocks(config, section)}, "per_step")
    schema = import_credit("datasets.gen_2.channel_utils").ChannelSchema.from_config(
        copy.deepcopy(config)
    )
    counts = [
        sum(entry["n_levels"] for entry in layout)
        for layout in (schema.input_layout, schema.target_layout)
    ]
    config["model"].pop("post_conf", None)
    _forward(config, *counts)


def _without_blocks(config: Mapping[str, Any], section: str) -> dict[str, Any]:
    """The phases of a section, whose blocks would open files."""
    return {phase: {} for phase in config.get(f"{section}s") or {}}


def _forward(config: dict[str, Any], inputs: int | None, outputs: int | None) -> None:
    """Builds the model without memory, and runs a sample of zeros through it."""
    section = config["model"]
    if "architecture" in section:
        section["architecture"] |= {"encoder_weights": None}  # no download
    with torch.device("meta"):
        model: Callable[..., Any] = import_credit("models").load_model(config)
    if inputs is None or "image_height" not in section:
        return
    frames = section.get("frames", config["data"].get("history_len", 1))
    grid = section["image_height"], section["image_width"]
    x = torch.zeros(1, inputs, frames, *grid, device="meta")
    with torch.no_grad():
        y = model(x)
    target = torch.zeros(1, int(outputs or 0), 1, *grid, device="meta")
    torch.nn.functional.mse_loss(y, target)
