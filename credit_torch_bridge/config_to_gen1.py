"""A config of CREDIT's generation 2 as one of generation 1."""

from __future__ import annotations

from typing import Any

from credit_torch_bridge.config_gen1 import active_physics, note_ensemble
from credit_torch_bridge.config_ledger import Ledger
from credit_torch_bridge.config_to_gen1_data import data_to_gen1

_MODES = {"none": "none", "ddp": "ddp", "fsdp2": "fsdp"}
_DOMAIN_MODES = {
    "none": "domain_parallel",
    "ddp": "domain_parallel",
    "fsdp2": "fsdp+domain_parallel",
}

_DEFAULT = "gen2's default"
# What gen1's parser asks for, or has another default for.
_TRAINER = {
    "load_weights": False,
    "reload_epoch": False,
    "start_epoch": 0,
    "epochs": 1,
    "batches_per_epoch": 0,
    "valid_batches_per_epoch": 0,
    "stopping_patience": 100,
    "save_backup_weights": True,
    "activation_checkpoint": False,
    "grad_max_norm": 0.0,
    "valid_thread_workers": 4,
    "prefetch_factor": 2,
}
_LOSS = {
    "use_latitude_weights": False,
    "use_variable_weights": False,
}


def gen2_to_gen1(ledger: Ledger) -> None:
    """Changes a whole config; what gen1 does not have is in `ledger.problems`."""
    _trainer_fits(ledger)
    _loss_fits(ledger)
    _data_keys(ledger)
    data_to_gen1(ledger)
    if ledger.problems:
        return
    _model(ledger)
    _trainer(ledger)
    for key, value in _LOSS.items():
        ledger.default(f"loss.{key}", value, _DEFAULT)
    if not ledger.has("loss.latitude_weights"):
        ledger.compute("loss.latitude_weights", None, "gen1's parser asks for the key")
    ledger.default("seed", 42, _DEFAULT)
    ledger.drop("metrics", "gen1 has its own, on the normalised output")
    ledger.drop("inference", "gen1's rollout reads predict")


def _trainer_fits(ledger: Ledger) -> None:
    data = ledger.get("trainer.parallelism.data", "none")
    if not isinstance(data, str) or data not in _MODES:
        modes = ", ".join(_MODES)
        ledger.problem(
            "trainer.parallelism.data", f"{data!r} is unknown; expected one of {modes}"
        )
    degree = ledger.get("trainer.parallelism.tensor", 1)
    if degree != 1:
        ledger.problem(
            "trainer.parallelism.tensor", f"{degree}: gen1 has no tensor parallelism"
        )
    accumulate = ledger.get("trainer.grad_accum_every", 1)
    if accumulate != 1:
        ledger.problem(
            "trainer.grad_accum_every",
            f"{accumulate}: gen1's trainer never accumulates",
        )
    if ledger.get("trainer.amp") and (
        ledger.get("trainer.parallelism.data") == "fsdp2"
    ):
        ledger.problem(
            "trainer.amp", "with fsdp2 it is bfloat16; gen1 has float16 alone"
        )
    note_ensemble(ledger)


def _loss_fits(ledger: Ledger) -> None:
    if ledger.has("loss.type"):
        kind = ledger.get("loss.type")
        ledger.problem("loss.type", f"{kind!r}: gen1 has the flat style alone")


def _data_keys(ledger: Ledger) -> None:
    """Keys that gen2 has in two places, or that gen1 would understand otherwise."""
    ledger.drop("data.retain_graph", "gen2 never keeps the graph; gen1 would")
    ledger.drop("data.calendar", "gen1 takes that of the files")
    chosen = ledger.get("trainer.backprop_on_timestep")
    if chosen is not None:
        ledger.move("trainer.backprop_on_timestep", "data.backprop_on_timestep", chosen)


def _model(ledger: Ledger) -> None:
    """Padding that gen1 says by two numbers; physics that gen2 passes over."""
    for key in ("pad_lat", "pad_lon"):
        ledger.drop(f"model.{key}", "gen2 does not read it, and gen1 would pad")
    active = active_physics(ledger.get("model.post_conf"))
    why = "nothing in it is active"
    if active:
        why = f"gen2's training passes over {', '.join(active)}; gen1 would correct"
    ledger.drop("model.post_conf", why)
    flat = _flat_padding(ledger.get("model.padding_conf"))
    if flat:
        words = ", ".join(f"model.{key} = {pad}" for key, pad in flat.items())
        ledger.moved("model.padding_conf", words)
        for key, pad in flat.items():
            ledger.put(f"model.{key}", pad)


def _flat_padding(conf: Any) -> dict[str, int] | None:
    """`pad_lat` and `pad_lon`, where gen1's flat keys mean the same."""
    if not isinstance(conf, dict) or not conf.get("activate"):
        return None
    pads = {key: conf.get(key) for key in ("pad_lat", "pad_lon")}
    even = all(isinstance(p, list) and len(set(p)) == 1 for p in pads.values())
    plain = set(conf) == {"activate", "mode", *pads}
    if not even or not plain or conf.get("mode") != "mirror":
        return None
    return {key: pad[0] for key, pad in pads.items()}  # pyright: ignore


def _trainer(ledger: Ledger) -> None:
    ledger.compute("trainer.type", "era5-gen1", "gen1's name")
    data = ledger.get("trainer.parallelism.data", "none")
    domain = ledger.get("trainer.parallelism.domain", 1)
    mode = (_MODES if domain == 1 else _DOMAIN_MODES)[data]
    if domain != 1:
        ledger.put("trainer.domain_parallel_size", domain)
        ledger.note(
            "trainer.domain_parallel_size",
            f"{domain}: gen1 trains in mode {mode!r}, but CREDIT's parser refuses it",
        )
    ledger.drop("trainer.mode", "trainer.parallelism says it")
    ledger.move("trainer.parallelism", "trainer.mode", mode)
    ledger.drop("trainer.fsdp2_mp_policy", "gen1 does not read it")
    ledger.drop("trainer.dataloader_timeout_s", "gen1 does not read it")
    for key, value in _TRAINER.items():
        ledger.default(f"trainer.{key}", value, _DEFAULT)
    ledger.default("trainer.valid_batch_size", 1, "gen1's parser asks for it")
