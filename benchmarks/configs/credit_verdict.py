"""What CREDIT itself does with a config, as far as it can be tried without data.

Its parser or the checks of `train_gen2`, the trainer, its optimizer and loss, the model
on torch's device "meta", one forward of the channels that the config names, whose
result goes into a loss, the metrics of a batch, and what `rollout_gen2` reads before it
opens files. Each is CREDIT's own code.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml

from benchmarks.configs.survey import ENVIRONMENT
from credit_torch_bridge.compare.jax_side import import_credit
from credit_torch_bridge.config.convert import GEN2, kind_of

TAKES = "takes it"


def credit_verdict(path: Path) -> str:
    """One sentence: CREDIT trains with a config, or its reason not to.

    Args:
        path: path of the YAML.
    """
    return _verdict(path, _try)


def credit_forecasts(path: Path) -> str:
    """One sentence: CREDIT's `rollout_gen2` takes a config, or its reason not to.

    Args:
        path: path of the YAML.
    """
    return _verdict(path, _try_rollout)


def _verdict(path: Path, attempt: Callable[[dict[str, Any]], None]) -> str:
    printed = io.StringIO()
    try:
        with open(path) as file:
            config = yaml.load(file, Loader=yaml.FullLoader)
        with _quiet(printed), mock.patch.dict(os.environ, ENVIRONMENT):
            attempt(config)
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
    trainer = import_credit("trainers").load_trainer(copy.deepcopy(config))
    for section in ("preblock", "postblock"):
        build = getattr(import_credit(section), f"build_{section}s")
        build(config | {f"{section}s": _blocks(config, section)}, "per_step")
    schema = _schema(config)
    counts = [
        sum(entry["n_levels"] for entry in layout)
        for layout in (schema.input_layout, schema.target_layout)
    ]
    config["model"].pop("post_conf", None)
    _forward(config, *counts)
    _begin_training(copy.deepcopy(config), trainer)
    _score(copy.deepcopy(config), schema, counts[1])


def _blocks(
    config: Mapping[str, Any], section: str, types: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The phases of a section with blocks of some types; others would open files."""
    return {
        phase: {
            name: block
            for name, block in (blocks if isinstance(blocks, dict) else {}).items()
            if isinstance(block, dict) and block.get("type") in types
        }
        for phase, blocks in (config.get(f"{section}s") or {}).items()
    }


def _begin_training(config: dict[str, Any], trainer: type) -> None:
    """Builds optimizer, schedule, loss and trainer for a model of one weight."""
    utils, losses = import_credit("trainers.utils"), import_credit("losses")
    model = torch.nn.Linear(1, 1)
    with tempfile.TemporaryDirectory() as folder:
        config["save_loc"] = folder
        config["trainer"]["load_weights"] = False
        for section in ("preblock", "postblock"):
            config[f"{section}s"] = _blocks(config, section)
        utils.inject_flat_var_keys(config)
        utils.load_model_states_and_optimizer(config, model, torch.device("cpu"))
        for validation in (False, True):
            with contextlib.suppress(FileNotFoundError):  # of latitudes and scalers
                losses.load_loss(config, validation=validation)
        trainer(model, 0, config)


def _score(config: dict[str, Any], schema: Any, num_channels: int) -> None:
    """Computes the metrics of a batch of zeros, on four points."""
    args = (config.get("metrics") or {}).get("args")
    if args is not None:  # without its files
        args |= {"use_latitude_weights": False, "var_weighting": "none"}
    zeros = torch.zeros(1, num_channels, 2, 2)
    batch = _named_fields(config, schema, {"y": zeros, "y_pred": zeros})
    import_credit("metrics").load_metric(config)(batch)


def _schema(config: Mapping[str, Any]) -> Any:
    """The channels of a config."""
    module = import_credit("datasets.gen_2.channel_utils")
    return module.ChannelSchema.from_config(copy.deepcopy(config))


def _named_fields(
    config: dict[str, Any], schema: Any, batch: dict[str, Any]
) -> dict[str, Any]:
    """A batch after the postblocks that split arrays into variables."""
    module = import_credit("postblock")
    config["postblocks"] = _blocks(config, "postblock", ("reconstruct",))
    channels = {"_channel_map": schema.target_channel_map()}
    blocks = module.build_postblocks(config, "per_step")
    return module.apply_postblocks(blocks, batch | {"metadata": {"target": channels}})


def _try_rollout(config: dict[str, Any]) -> None:
    """Reads what `rollout_gen2` reads, and splits a prediction into named fields."""
    utils = import_credit("trainers.rollout_utils")
    section = config["inference"]
    _ = config["seed"], section["mode"], section["save_forecast"]
    utils.apply_inference_overrides(config)
    mode = section.get("run_mode", "batch")
    chosen = section[f"{mode}_forecast"]
    if mode == "batch":
        utils.batch_init_times(chosen)
    else:
        _ = chosen["start_datetime"]
    utils.parse_length(chosen["forecast_length"], config["data"]["timestep"])
    schema = _schema(config)
    count = sum(entry["n_levels"] for entry in schema.target_layout)
    _ = _named_fields(config, schema, {"y_pred": torch.zeros(1, count, 2, 2)})[
        "y_processed"
    ]


@contextmanager
def _without_memory() -> Iterator[None]:
    """Builds models on torch's device "meta", also those that ask for another.

    FuXi moves itself to the CPU, and Swin reads the numbers of a `linspace`.
    """
    numbers = partial(torch.linspace, device="cpu")
    with (
        torch.device("meta"),
        mock.patch.object(torch.nn.Module, "to", lambda module, *_: module),
        mock.patch.object(torch, "linspace", numbers),
    ):
        yield


def _forward(config: dict[str, Any], inputs: int | None, outputs: int | None) -> None:
    """Builds the model without memory, and runs a sample of zeros through it."""
    section = config["model"]
    if "architecture" in section:
        section["architecture"] |= {"encoder_weights": None}  # no download
    with _without_memory():
        model: Callable[..., Any] = import_credit("models").load_model(config)
    size = section.get("param_interior", section)  # of WRF
    if inputs is None or "image_height" not in size:
        return
    frames = section.get("frames", config["data"].get("history_len", 1))
    grid = size["image_height"], size["image_width"]
    x = torch.zeros(1, inputs, frames, *grid, device="meta")
    with torch.no_grad():
        y = model(x)
    target = torch.zeros(1, int(outputs or 0), 1, *grid, device="meta")
    torch.nn.functional.mse_loss(y, target)
