"""A gen2 config for CREDIT's own trainer: without the keys that only credit_jax has."""

from __future__ import annotations

from typing import Any

from credit_jax.config.parallelism import ParallelismConfig
from credit_torch_bridge.config_gen1 import mode_to_parallelism, pairs
from credit_torch_bridge.config_ledger import Ledger, same

CREDIT_DEGREES = ("data", "tensor", "domain")
PHASES = {
    "preblocks": ("ic_only", "per_step"),
    "postblocks": ("per_step", "post_rollout"),
}
_DATES = ("start_datetime", "end_datetime", "date_ranges")
_STAGES = "dim", "depth", "global_window_size", "cross_embed_strides"
_MEMORY = "CREDIT decides itself what it keeps in memory; it changes no number"
_DEGREES = {
    "dp_replicate": "CREDIT splits parameters over all replicas; it changes no number",
    "dp_shard": "CREDIT splits parameters over all replicas; it changes no number",
    "ep": "CREDIT has no expert axis",
    "etp": "CREDIT has no expert axis",
    "pp": "CREDIT has no pipeline axis",
    "ulysses_degree": "it moves data only; CREDIT has no such key",
}
_REMAT = {"none": False, "full": True, "selective": True}


def sections_are_there(ledger: Ledger) -> None:
    """Writes down the sections that a config to train needs and that are missing."""
    for key in ("data", "model", "loss", "trainer"):
        if not isinstance(ledger.get(key), dict):
            ledger.problem(key, "missing; a config to train needs this section")


def blocks_are_named(ledger: Ledger) -> None:
    """Writes down blocks outside the phases that there are."""
    for section, phases in PHASES.items():
        if ledger.has(section) and not isinstance(ledger.get(section, {}), dict):
            ledger.problem(section, "must be a section of keys")
        for phase in ledger.keys(section):
            if phase not in phases:
                ledger.problem(
                    (section, phase),
                    f"CREDIT refuses this key here; blocks stand in {phases[0]} or "
                    f"{phases[1]}",
                )
            for name in ledger.keys((section, phase)):
                if not isinstance(ledger.get((section, phase, name)), dict):
                    ledger.problem(
                        (section, phase, name), "must be a block with a type"
                    )


def gen2_to_credit(ledger: Ledger) -> None:
    """Makes a gen2 config one that CREDIT's train_gen2 accepts."""
    ledger.drop("demo", "credit_jax only: write the data set with it first")
    _trainer(ledger)
    _model(ledger)
    _loss(ledger)
    _validation(ledger)
    _cautions(ledger)


def trainer_of_gen1(ledger: Ledger) -> None:
    """A gen2 config whose trainer still says `mode`."""
    if ledger.get("trainer.parallelism") is None and ledger.has("trainer.mode"):
        mode_to_parallelism(ledger)


def _trainer(ledger: Ledger) -> None:
    trainer_of_gen1(ledger)
    devices = "CREDIT's launcher says how many devices there are"
    ledger.drop("trainer.num_devices", devices)
    ledger.drop("trainer.fsdp", _MEMORY)
    cp = ledger.get("trainer.parallelism.cp")
    if cp is not None:
        if ledger.has("trainer.parallelism.domain"):
            ledger.drop("trainer.parallelism.cp", "another name of domain")
        else:
            ledger.move("trainer.parallelism.cp", "trainer.parallelism.domain", cp)
    for key in ParallelismConfig.model_fields:
        if key not in CREDIT_DEGREES:
            why = _DEGREES.get(key, "CREDIT has no such key")
            ledger.drop(f"trainer.parallelism.{key}", why)
    remat = ledger.get("trainer.activation_checkpoint")
    if isinstance(remat, str) and remat in _REMAT:
        why = f"CREDIT knows true and false, not {remat!r}; it changes no number"
        ledger.compute("trainer.activation_checkpoint", _REMAT[remat], why)
    ledger.default("trainer.use_scheduler", False, "CREDIT asks for it")
    if (
        ledger.has("trainer.grad_max_norm")
        and ledger.get("trainer.grad_max_norm") is None
    ):
        ledger.compute("trainer.grad_max_norm", 0.0, "CREDIT cannot compare null")


def _model(ledger: Ledger) -> None:
    pairs(ledger)
    if isinstance(ledger.get("model.padding_conf"), dict):
        ledger.default("model.padding_conf.activate", True, "credit_jax's default")
    for key in _STAGES:
        value = ledger.get(f"model.{key}")
        if type(value) is int:
            why = "CREDIT's model takes a list of four here"
            ledger.compute(f"model.{key}", [value] * 4, why)
    window = ledger.get("model.local_window_size")
    if isinstance(window, list):
        if len(set(window)) == 1:
            why = "CREDIT's model takes one number here"
            ledger.compute("model.local_window_size", window[0], why)
        else:
            ledger.problem(
                "model.local_window_size",
                f"{window}: CREDIT's YAML can hold one number for all stages only",
            )


def _loss(ledger: Ledger) -> None:
    """Keys that CREDIT raises KeyError for, with what credit_jax does without them."""
    if ledger.has("loss.type"):
        return
    training = ledger.get("loss.training_loss", "mse")
    ledger.default("loss.training_loss", "mse", "credit_jax's default")
    weighted = any(
        ledger.get(f"loss.use_{w}_weights") for w in ("latitude", "variable")
    )
    if not weighted and ledger.get("loss.validation_loss") is None:
        why = "CREDIT fails without it; credit_jax takes the training loss"
        ledger.compute("loss.validation_loss", training, why)
        given = ledger.get("loss.training_loss_parameters")
        if given is not None:
            ledger.default("loss.validation_loss_parameters", given, why)


def _validation(ledger: Ledger) -> None:
    """Every key of `data` in `validation_data`, as CREDIT asks for."""
    valid = ledger.get("validation_data")
    if not isinstance(valid, dict) or not valid:
        return
    for key in _DATES:
        for section in ("data", "validation_data"):
            if (
                ledger.has(f"{section}.{key}")
                and ledger.get(f"{section}.{key}") is None
            ):
                ledger.drop(f"{section}.{key}", "null says nothing")
    _one_kind_of_dates(ledger)
    for key in ledger.keys("data"):
        if key != "source" and not ledger.has(("validation_data", key)):
            why = "CREDIT asks for every key of data here"
            ledger.compute(("validation_data", key), ledger.get(("data", key)), why)


def _one_kind_of_dates(ledger: Ledger) -> None:
    """Start and end as one range, where the other section has ranges."""
    kinds = {}
    for section in ("data", "validation_data"):
        found = [key for key in _DATES if ledger.has(f"{section}.{key}")]
        kinds[section] = found and found[-1] == "date_ranges"
    if kinds["data"] == kinds["validation_data"] or not any(kinds.values()):
        return
    section = "validation_data" if kinds["data"] else "data"
    dates = [
        ledger.get(f"{section}.{key}", ledger.get(f"data.{key}")) for key in _DATES[:2]
    ]
    if None in dates:
        return
    for key in _DATES[:2]:
        ledger.moved(f"{section}.{key}", f"{section}.date_ranges")
    ledger.put(f"{section}.date_ranges", [dates])


def _cautions(ledger: Ledger) -> None:
    """What CREDIT does otherwise with the same keys."""
    tensor = ledger.get("trainer.parallelism.tensor", 1)
    domain = ledger.get("trainer.parallelism.domain", 1)
    if tensor != 1:
        ledger.note(
            "trainer.parallelism.tensor", f"{tensor}: CREDIT refuses it for this model"
        )
    if domain != 1:
        ledger.note(
            "trainer.parallelism.domain",
            f"{domain}: CREDIT's own domain parallelism changes the numbers",
        )
    fsdp2 = ledger.get("trainer.parallelism.data") == "fsdp2"
    policy = ledger.get("trainer.fsdp2_mp_policy")
    if ledger.get("trainer.amp") and policy is not None and not fsdp2:
        ledger.note(
            "trainer.fsdp2_mp_policy", "CREDIT reads it with data: fsdp2 alone, and "
            "takes float16 here"
        )  # fmt: skip
    if len(ledger.keys("data.source")) > 1 and ledger.get("loss.use_variable_weights"):
        ledger.note(
            "loss.variable_weights",
            "CREDIT reads the variables of the first source alone here",
        )
    twin = any(
        isinstance(block.get("args"), dict)
        and block["args"].get("out_key") == "y_target_processed"
        for block in _steps(ledger)
    )
    if not twin and not ledger.get("metrics"):
        ledger.note(
            "postblocks.per_step",
            "CREDIT's metrics fail at the first batch without a reconstruct block from "
            "y to y_target_processed",
        )


def _steps(ledger: Ledger) -> list[dict[str, Any]]:
    blocks = ledger.get("postblocks.per_step")
    found = blocks.values() if isinstance(blocks, dict) else ()
    return [block for block in found if isinstance(block, dict)]


def sources_equal(ledger: Ledger) -> bool:
    """Whether the validation reads the sources of the training."""
    own = ledger.get("validation_data.source")
    return own is None or same(own, ledger.get("data.source"))
