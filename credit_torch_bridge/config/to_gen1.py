"""Converts a config of CREDIT's generation 2 to generation 1."""

from __future__ import annotations

from typing import Any

from credit_jax.config.assimilation import OptimizeConfig
from credit_torch_bridge.config.editor import ConfigEditor
from credit_torch_bridge.config.from_gen1 import (
    STATE_TRAINER,
    TRAINER_KEYS,
    note_ensemble,
)
from credit_torch_bridge.config.post_conf import active_physics, post_conf_to_gen1
from credit_torch_bridge.config.to_gen1_data import data_to_gen1
from credit_torch_bridge.config.to_gen1_predict import inference_to_predict

_MODES = {"none": "none", "ddp": "ddp", "fsdp2": "fsdp"}
_DOMAIN_MODES = {
    "none": "domain_parallel",
    "ddp": "domain_parallel",
    "fsdp2": "fsdp+domain_parallel",
}

_DEFAULT = "gen2's default"
# Keys that gen1's parser requires, or for which it has another default.
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


def gen2_to_gen1(editor: ConfigEditor) -> None:
    """Converts a whole config; what gen1 cannot express goes to `editor.problems`."""
    _trainer_fits(editor)
    _loss_fits(editor)
    _data_keys(editor)
    data_to_gen1(editor)
    if editor.problems:
        return
    _model(editor)
    _trainer(editor)
    for key, value in _LOSS.items():
        editor.default(f"loss.{key}", value, _DEFAULT)
    if not editor.has("loss.latitude_weights"):
        editor.compute("loss.latitude_weights", None, "gen1's parser asks for the key")
    editor.default("seed", 42, _DEFAULT)
    editor.drop("metrics", "gen1 has its own, on the normalized output")
    inference_to_predict(editor)


def _trainer_fits(editor: ConfigEditor) -> None:
    data = editor.get("trainer.parallelism.data", "none")
    if not isinstance(data, str) or data not in _MODES:
        modes = ", ".join(_MODES)
        editor.problem(
            "trainer.parallelism.data", f"{data!r} is unknown; expected one of {modes}"
        )
    degree = editor.get("trainer.parallelism.tensor", 1)
    if degree != 1:
        editor.problem(
            "trainer.parallelism.tensor", f"{degree}: gen1 has no tensor parallelism"
        )
    accumulate = editor.get("trainer.grad_accum_every", 1)
    if accumulate != 1:
        editor.problem(
            "trainer.grad_accum_every",
            f"{accumulate}: gen1's trainer never accumulates",
        )
    if editor.get("trainer.amp") and (
        editor.get("trainer.parallelism.data") == "fsdp2"
    ):
        editor.problem(
            "trainer.amp", "with fsdp2 it is bfloat16; gen1 has float16 alone"
        )
    note_ensemble(editor)


def _loss_fits(editor: ConfigEditor) -> None:
    if editor.has("loss.type"):
        kind = editor.get("loss.type")
        editor.problem("loss.type", f"{kind!r}: gen1 has the flat style alone")


def _data_keys(editor: ConfigEditor) -> None:
    """Removes or moves keys that have another meaning or place in gen1."""
    editor.drop("data.retain_graph", "gen2 never keeps the graph; gen1 would")
    editor.drop("data.calendar", "gen1 takes that of the files")
    chosen = editor.get("trainer.backprop_on_timestep")
    if chosen is not None:
        editor.move("trainer.backprop_on_timestep", "data.backprop_on_timestep", chosen)


def _model(editor: ConfigEditor) -> None:
    """Converts padding and `gen1_post_conf`; drops `post_conf`, which gen2 ignores."""
    for key in ("pad_lat", "pad_lon"):
        editor.drop(f"model.{key}", "gen2 does not read it, and gen1 would pad")
    active = active_physics(editor.get("model.post_conf"))
    why = "nothing in it is active"
    if active:
        why = f"gen2's training passes over {', '.join(active)}; gen1 would correct"
    editor.drop("model.post_conf", why)
    post_conf_to_gen1(editor)
    flat = _flat_padding(editor.get("model.padding_conf"))
    if flat:
        words = ", ".join(f"model.{key} = {pad}" for key, pad in flat.items())
        editor.moved("model.padding_conf", words)
        for key, pad in flat.items():
            editor.put(f"model.{key}", pad)


def _flat_padding(conf: Any) -> dict[str, int] | None:
    """`pad_lat` and `pad_lon`, if gen1's flat keys mean the same."""
    if not isinstance(conf, dict) or not conf.get("activate"):
        return None
    pads = {key: conf.get(key) for key in ("pad_lat", "pad_lon")}
    even = all(isinstance(p, list) and len(set(p)) == 1 for p in pads.values())
    plain = set(conf) == {"activate", "mode", *pads}
    if not even or not plain or conf.get("mode") != "mirror":
        return None
    return {key: pad[0] for key, pad in pads.items()}  # pyright: ignore


def _optimize_ic(editor: ConfigEditor) -> None:
    """Moves `optimize_ic` to the keys of gen1's trainer `ic-opt`."""
    editor.compute("trainer.type", STATE_TRAINER, "gen1's trainer of initial states")
    fields = OptimizeConfig.model_fields.items()
    for name, field in fields:
        value = editor.get(f"optimize_ic.{name}", field.default)
        old = TRAINER_KEYS[name]
        editor.move(f"optimize_ic.{name}", f"trainer.{old}", value)
    editor.pop("optimize_ic")


def _trainer(editor: ConfigEditor) -> None:
    if editor.has("optimize_ic"):
        _optimize_ic(editor)
    else:
        editor.compute("trainer.type", "era5-gen1", "gen1's name")
    data = editor.get("trainer.parallelism.data", "none")
    domain = editor.get("trainer.parallelism.domain", 1)
    mode = (_MODES if domain == 1 else _DOMAIN_MODES)[data]
    if domain != 1:
        editor.put("trainer.domain_parallel_size", domain)
        editor.note(
            "trainer.domain_parallel_size",
            f"{domain}: gen1 trains in mode {mode!r}, but CREDIT's parser refuses it",
        )
    editor.drop("trainer.mode", "trainer.parallelism says it")
    editor.move("trainer.parallelism", "trainer.mode", mode)
    editor.drop("trainer.fsdp2_mp_policy", "gen1 does not read it")
    editor.drop("trainer.dataloader_timeout_s", "gen1 does not read it")
    for key, value in _TRAINER.items():
        editor.default(f"trainer.{key}", value, _DEFAULT)
    editor.default("trainer.valid_batch_size", 1, "gen1's parser asks for it")
