"""Converts a config of CREDIT's generation 1 to generation 2, as credit_jax has it."""

from __future__ import annotations

from typing import Any

from credit_jax.config.base import nearest_key
from credit_jax.config.trainer import TrainerConfig
from credit_jax.models.common.post_conf import Gen1PostConf, PostConfData
from credit_torch_bridge.config.editor import ConfigEditor
from credit_torch_bridge.config.from_gen1_data import ONE_SAMPLE, data_to_gen2
from credit_torch_bridge.config.from_gen1_predict import predict_to_inference

DIFFUSION_TRAINER, STATE_TRAINER = "era5-diffusion", "ic-opt"
TRAINERS = ("era5", "era5-gen1", "cam", "standard", "multi-step", "universal")
# What to do instead of CREDIT's other ways of training.
INSTEAD = {
    "era5-ensemble": "gen2 trains ensembles: type era5, with trainer.ensemble_size",
    "conus404": "configs/downscaling_conus404.yaml and unet_downscaling_conus404.yaml "
    "train its models on gen2 sources",
    "standard-wrf": "configs/wrf_1h.yaml and dscale_1h.yaml train its models on gen2 "
    "sources",
    "multi-step-wrf": "configs/wrf_1h.yaml and dscale_1h.yaml train its models on gen2 "
    "sources",
    "standard-les": "describe the files as gen2 sources for any model here",
    "samudra": "its model and its ocean data are not available here",
}
DOMAIN_MODES = ("domain_parallel", "fsdp+domain_parallel")
DATA_OF_MODE = {
    "none": "none",
    "ddp": "ddp",
    "fsdp": "fsdp2",
    "domain_parallel": "ddp",
    "fsdp+domain_parallel": "fsdp2",
}

# Key of `optimize_ic` -> key of gen1's trainer ic-opt.
TRAINER_KEYS = {
    "starting_window": "starting_window_size",
    "window": "window_size",
    "iterations": "batch_iterations",
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "max_norm": "grad_max_norm",
}
_DEFAULT = "gen1's default"
_METRICS = "gen2's metrics need both, and what is fed back is in physical units"
_TARGET = {"in_key": "y", "out_key": "y_target_processed"}
_DEFAULTS = {
    "amp": False,
    "weight_decay": 0,
    "stopping_patience": 999,
    "save_backup_weights": False,
    "activation_checkpoint": True,
    "valid_thread_workers": 0,
    "prefetch_factor": 4,
}
POST_CONF, OURS = "model.post_conf", "model.gen1_post_conf"
_BLOCKS = [
    name
    for name in Gen1PostConf.model_fields
    if name.endswith(("_fixer", "_updown", "skebs"))
]
_LISTS = ("variables", "surface_variables", "diagnostic_variables")
_OUTSIDE = "activate_outside_model"
# Blocks that gen1's trainer can apply outside of the model, after those inside.
_TRAINED_OUTSIDE = ("global_mass_fixer", "global_water_fixer", "global_energy_fixer")
_KNOWN = {
    *TrainerConfig.model_fields,
    *TrainerConfig.ignored,
    *TrainerConfig.unavailable,
}


def gen1_to_gen2(editor: ConfigEditor, level_coord: str) -> None:
    """Converts a whole config; what cannot be converted goes to `editor.problems`."""
    # Differs from CREDIT, whose `credit convert` adds 1 to forecast_len each time,
    # keeps flat padding keys that gen2 does not read, invents levels, adds a year to
    # the training years, and enables other features.
    training = editor.has("trainer")
    kind = editor.get("trainer.type")
    diffusion = "diffusion" in str(editor.get("model.type"))
    others = (STATE_TRAINER, *((DIFFUSION_TRAINER,) if diffusion else ()))
    if training and kind not in (*TRAINERS, *others):
        editor.problem(
            "trainer.type",
            f"{kind!r} is another way of training, which gen2's trainer does not have; "
            + INSTEAD.get(str(kind), f"expected one of {', '.join(TRAINERS)}"),
        )
        if str(kind) in INSTEAD:
            return  # its data section is another one, too
    one_sample = editor.get("data.dataset_type") == ONE_SAMPLE
    # The predicted variables in gen1's order of channels.
    lists = [editor.get(f"data.{key}", []) for key in _LISTS]
    order = [name for names in lists if isinstance(names, list) for name in names]
    _padding(editor)
    post_conf_from_gen1(editor)
    data_to_gen2(editor, level_coord)
    if editor.problems:
        return
    editor.default("postblocks", {"per_step": _postblocks(editor)}, _METRICS)
    predict_to_inference(editor)
    if not training:
        return
    if kind == STATE_TRAINER:
        for name, old in TRAINER_KEYS.items():
            value = editor.get(f"trainer.{old}")
            if old in TrainerConfig.model_fields:
                # Training reads it, too.
                editor.put(f"optimize_ic.{name}", 0 if value is None else value)
            elif value is not None:
                editor.move(f"trainer.{old}", f"optimize_ic.{name}", value)
        editor.note(
            "trainer.batches_per_epoch",
            "credit-jax optimize-ic fits the state of one --init-time; gen1 those of "
            "the first samples of the training period",
        )
    trainer_to_gen2(editor)
    if one_sample:
        for key in ("train_batch_size", "valid_batch_size"):
            editor.compute(f"trainer.{key}", 1, f"{ONE_SAMPLE} gives one sample")
    weights = editor.get("loss.variable_weights")
    if not isinstance(weights, dict) or not editor.get("loss.use_variable_weights"):
        return
    if list(weights) != order and set(weights) == set(order):
        editor.pop("loss.variable_weights")
        why = "in the order of the channels, as gen1's parser sorts them"
        ordered = {name: weights[name] for name in order}
        editor.compute("loss.variable_weights", ordered, why)


def _postblocks(editor: ConfigEditor) -> dict[str, Any]:
    """The postblocks that make named fields of the prediction and the target."""
    # With several steps the fields are in physical units, as required for the feedback.
    steps = editor.get("data.forecast_len"), editor.get("validation_data.forecast_len")
    norm = editor.get("preblocks.per_step.norm")
    blocks: dict[str, Any] = {}
    for name, keys in (("", {}), ("_target", _TARGET)):
        arguments = {"args": dict(keys)} if keys else {}
        blocks[f"reconstruct{name}"] = {"type": "reconstruct", **arguments}
        if norm and max(count or 1 for count in steps) > 1:
            key = {"key": keys["out_key"]} if keys else {}
            block = {"type": "era5_normalizer", "args": {**norm["args"], **key}}
            blocks[f"denormalize{name}"] = block
    return blocks


def _padding(editor: ConfigEditor) -> None:
    """Converts padding to `padding_conf`."""
    keys = "pad_lat", "pad_lon"
    pads = [editor.get(f"model.{key}") for key in keys]
    has_conf = editor.get("model.padding_conf") is not None
    if not has_conf and all(type(pad) is int for pad in pads):
        conf = {"activate": True, "mode": "mirror"}
        editor.put("model.padding_conf", conf)
        for key, pad in zip(keys, pads, strict=True):
            editor.move(f"model.{key}", f"model.padding_conf.{key}", [pad, pad])
    why = "gen1 pads only where both are whole numbers"
    for key in keys:
        text = "padding_conf is there, and gen1 reads that one" if has_conf else why
        editor.drop(f"model.{key}", text)
    pairs(editor)


def pairs(editor: ConfigEditor) -> None:
    """Converts padding given as one number to a pair, like gen1's parser."""
    for key in ("pad_lat", "pad_lon"):
        path = f"model.padding_conf.{key}"
        pad = editor.get(path)
        if type(pad) is int:
            editor.compute(path, [pad, pad], f"{pad} on both sides")


def trainer_to_gen2(editor: ConfigEditor) -> None:
    """Converts gen1's `trainer`; makes values explicit whose defaults differ."""
    editor.compute("trainer.type", "gen2", f"gen1's {editor.get('trainer.type')}")
    if editor.get("trainer.use_mixed_precision"):
        editor.problem(
            "trainer.use_mixed_precision",
            "true rounds other tensors than gen2's fsdp2_mp_policy; use false, and "
            "choose trainer.amp and fsdp2_mp_policy afterwards",
        )
    if editor.get("trainer.ensemble_size", 1) == 1:
        editor.drop("trainer.ensemble_size", "1 is the default")
    else:
        editor.note(
            "trainer.ensemble_size",
            "gen2 gives all ranks the same samples with every CRPS loss, gen1 with "
            "KCRPS alone",
        )
    mode_to_parallelism(editor)
    unread = "gen1 only, and it changes no number"
    for key in ("use_mixed_precision", "mixed_precision"):
        editor.drop(f"trainer.{key}", "it is not used")
    for key in ("cpu_offload", "checkpoint_all_layers"):
        editor.drop(f"trainer.{key}", unread)
    if editor.get("trainer.grad_accum_every", 1) != 1:
        why = "gen1's trainer never accumulates"
        editor.compute("trainer.grad_accum_every", 1, why)
    no_clipping(editor, "no clipping")
    rate = "trainer.update_learning_rate"
    if editor.get("trainer.use_scheduler") and editor.get(rate):
        why = "gen1's parser says so where there is a schedule"
        editor.compute(rate, False, why)
    if editor.get("trainer.train_one_epoch"):
        editor.compute("trainer.epochs", 999, "gen1 sets it with train_one_epoch")
    for key, value in _DEFAULTS.items():
        editor.default(f"trainer.{key}", value, _DEFAULT)
    editor.default("trainer.use_scheduler", False, "gen2 asks for it")
    size = editor.get("trainer.train_batch_size", 1)
    editor.default("trainer.valid_batch_size", size, "gen2 asks for it")
    for key in editor.keys("trainer"):
        if key not in _KNOWN:
            hint = nearest_key(key, _KNOWN) if isinstance(key, str) else ""
            near = f"; {hint}" if hint.startswith("the nearest") else ""
            editor.drop(("trainer", key), f"no trainer reads it{near}")


def no_clipping(editor: ConfigEditor, why: str) -> None:
    """Writes 0 for a norm that is null."""
    key = "trainer.grad_max_norm"
    if editor.has(key) and editor.get(key) is None:
        editor.compute(key, 0.0, why)


def mode_to_parallelism(editor: ConfigEditor) -> None:
    """Converts `trainer.mode` and `domain_parallel_size` to `trainer.parallelism`."""
    if editor.get("trainer.parallelism") is not None:
        for key in ("mode", "domain_parallel_size"):
            editor.drop(f"trainer.{key}", "trainer.parallelism says it")
        return
    mode = editor.get("trainer.mode", "none")
    degree = editor.get("trainer.domain_parallel_size", 1)
    if not isinstance(mode, str) or mode not in DATA_OF_MODE:
        modes = ", ".join(DATA_OF_MODE)
        editor.problem("trainer.mode", f"{mode!r} is unknown; expected one of {modes}")
        return
    if type(degree) is not int or degree < 1 or (mode in DOMAIN_MODES and degree < 2):
        editor.problem(
            "trainer.domain_parallel_size",
            f"must be a number above 1 with mode {mode!r}, got {degree!r}",
        )
        return
    degree = 1 if mode == "none" else degree
    block = {"data": DATA_OF_MODE[mode], "tensor": 1, "domain": degree}
    if editor.has("trainer.mode"):
        editor.move("trainer.mode", "trainer.parallelism", block)
    else:
        editor.compute("trainer.parallelism", block, "no trainer.mode: one device")
    editor.moved("trainer.domain_parallel_size", "trainer.parallelism.domain")
    # Notes what differs between gen1's and gen2's parallelism.
    loads = any(
        editor.get(f"trainer.load_{subject}") for subject in ("weights", "optimizer")
    )
    fsdp = "fsdp" in mode
    editor.note_if(
        {
            f"trainer.mode: {mode}: its checkpoints (model_checkpoint.pt) are not "
            "gen2's; convert them, too": fsdp and loads,
            "trainer.amp: float16 in gen1, bfloat16 with fsdp2 in gen2": fsdp
            and editor.get("trainer.amp"),
            "trainer.parallelism.domain: CREDIT's domain parallelism changes the "
            "numbers, credit_jax's does not": degree > 1,
        }
    )


def active_physics(conf: Any) -> list[str]:
    """Names of the blocks of a `post_conf` that act before gen1's loss."""
    if not isinstance(conf, dict) or not conf.get("activate"):
        return []
    return [
        name
        for name in _BLOCKS
        if isinstance(block := conf.get(name), dict)
        and block.get("activate")
        and (name in _TRAINED_OUTSIDE or not block.get(_OUTSIDE))
    ]


def post_conf_from_gen1(editor: ConfigEditor) -> None:
    """Moves an active `post_conf` to `gen1_post_conf`, with the data keys it reads."""
    conf = editor.get(POST_CONF)
    active = active_physics(conf)
    if not active:
        editor.drop(POST_CONF, "nothing in it is active")
        return
    # gen1 runs the blocks that are outside of the model last.
    outside = [bool(editor.get(f"{POST_CONF}.{name}.{_OUTSIDE}")) for name in active]
    if outside != sorted(outside):
        editor.problem(
            POST_CONF,
            f"{active[outside.index(True)]} runs outside of the model, after "
            f"{active[-1 - outside[::-1].index(False)]}, which runs inside; here they "
            "run in the order of CREDIT's blocks: set activate_outside_model alike",
        )
    editor.drop((*POST_CONF.split("."), "activate"), "a block is active")
    for name in editor.keys(POST_CONF):
        if name not in active:
            block, why = conf[name], "not active"
            if name not in _BLOCKS:
                why = "no model of gen1 reads it"
            elif isinstance(block, dict) and block.get("activate"):
                why = "gen1's training does not apply it outside of the model"
            editor.drop(f"{POST_CONF}.{name}", why)
    blocks = {name: dict(conf[name]) for name in active}
    for block in blocks.values():
        block.pop(_OUTSIDE, None)
    editor.moved(POST_CONF, OURS, "gen2's name for it is dropped in training")
    # The keys of gen1's `data` that the blocks read.
    data: dict[str, Any] = {key: editor.get(f"data.{key}", []) for key in _LISTS}
    data["levels"] = editor.get("model.levels", editor.get("data.levels"))
    data["lead_time_periods"] = editor.get("data.lead_time_periods")
    keys = ["save_loc_physics"]
    if editor.get("data.scaler_type") == "std_new":
        keys += ["mean_path", "std_path"]
    present = {key: editor.get(f"data.{key}") for key in keys}
    data |= {key: value for key, value in present.items() if value is not None}
    assert set(data) <= set(PostConfData.model_fields), "keys of the section"
    editor.put(OURS, {**blocks, "data": data})
    editor.moved("data.save_loc_physics", f"{OURS}.data.save_loc_physics")
