"""Makes a gen2 config for CREDIT's trainer, without keys that only credit_jax has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.config.sources.source import variables_of
from credit_jax.losses import LOSSES
from credit_jax.models.crossformer.config import StagesConfig
from credit_jax.models.registry import MODELS
from credit_torch_bridge.config import credit_blocks
from credit_torch_bridge.config.editor import ConfigEditor
from credit_torch_bridge.config.from_gen1 import mode_to_parallelism, no_clipping, pairs

# CREDIT's trainer of ensembles with a member on each rank (pull request 309).
ENSEMBLE = "ensemble-gen2"
CREDIT_DEGREES = ("data", "tensor", "domain")
PHASES = {
    "preblocks": ("ic_only", "per_step"),
    "postblocks": ("per_step", "post_rollout"),
}
_DATES = ("start_datetime", "end_datetime", "date_ranges")
_FORECASTS = ("predict", "inference")
# Keys of which a trainer has at least one.
_TRAINS = ("learning_rate", "train_batch_size", "epochs", "batches_per_epoch")
_STAGES = "dim", "depth", "global_window_size", "cross_embed_strides"
_X_ALONE = "CREDIT's gen2 trainer and rollout call a model with x alone, and this"
# Models that CREDIT's gen2 cannot run: its trainer calls `self.model(x)`
# (trainers/trainer_gen2.py, line 219). Diffusion it does not even build: `isinstance`
# with one argument, in diffusion.py, line 142. Both of CREDIT 2026.2.0.
ONLY_WEIGHTS = {
    "crossformer-diffusion": f"{_X_ALONE} one needs the noisy target, too",
    "unet-diffusion": f"{_X_ALONE} one needs the noisy target, too",
    "dscale": f"{_X_ALONE} one needs the encoded times, too",
    "wrf": f"{_X_ALONE} one needs the outer domain and the times, too",
}
# Models with blocks that CREDIT recomputes.
_COLUMN = "nextgen_wxformer", "wxformer_column"
_RECOMPUTED = ("crossformer", "crossformer-ensemble", "wxformer", *_COLUMN)
# Keys of credit_jax alone that change what a run computes, and their neutral values.
_OURS = {
    "trainer.fp8": (False, "CREDIT has no float8: it computes these layers as others"),
    "inference.members": (1, "CREDIT forecasts one member"),
    "inference.perturbation": (None, "CREDIT perturbs no initial state"),
}
_MEMORY = "CREDIT decides itself what it keeps in memory; it changes no number"
_DEGREES = {
    "dp_replicate": "CREDIT splits parameters over all replicas; it changes no number",
    "dp_shard": "CREDIT splits parameters over all replicas; it changes no number",
    "ep": "CREDIT has no experts",
    "etp": "CREDIT has no experts",
    "pp": "CREDIT has no pipeline axis",
    "ulysses_degree": "it moves data only; CREDIT has no such key",
}
# Keys of a loss in flat style that CREDIT reads without a default.
_LOSS_TERMS = ("use_latitude_weights", "use_variable_weights", "use_spectral_loss")
_REMAT = {"none": False, "full": True, "selective": True}


def check_sections(editor: ConfigEditor) -> None:
    """Records missing sections; of forecasts alone drops what is left of training."""
    training = not any(isinstance(editor.get(key), dict) for key in _FORECASTS)
    training |= any(editor.has(f"trainer.{key}") for key in _TRAINS)
    for key in () if training else ("trainer", "loss"):
        editor.drop(key, "a config of forecasts alone, which need none")
    for key in ("data", "model", *(("loss", "trainer") if training else ())):
        if not isinstance(editor.get(key), dict):
            editor.problem(key, "missing; a config to train needs this section")
    if not isinstance(editor.get("validation_data", {}), dict):
        editor.problem("validation_data", "must be a section of keys")


def blocks_are_named(editor: ConfigEditor) -> None:
    """Records blocks outside the phases of a section."""
    for name, phases in PHASES.items():
        for section in ((name,), ("inference", name)):
            if not isinstance(editor.get(section, {}), dict):
                editor.problem(section, "must be a section of keys")
            for phase in editor.keys(section):
                if phase not in phases:
                    editor.problem(
                        (*section, phase),
                        f"CREDIT refuses this key here; blocks stand in {phases[0]} or "
                        f"{phases[1]}",
                    )
                if not isinstance(editor.get((*section, phase), {}), dict):
                    editor.problem((*section, phase), "must be a section of blocks")
                for block in editor.keys((*section, phase)):
                    if not isinstance(editor.get((*section, phase, block)), dict):
                        editor.problem(
                            (*section, phase, block), "must be a block with a type"
                        )


def gen2_to_credit(editor: ConfigEditor) -> None:
    """Edits a gen2 config so that CREDIT's train_gen2 accepts it."""
    editor.drop("demo", "credit_jax only: write the data set with it first")
    if not editor.has("trainer"):
        _model(editor)
        return
    trainer_of_gen1(editor)
    devices = "CREDIT's launcher says how many devices there are"
    editor.drop("trainer.num_devices", devices)
    editor.drop("trainer.fsdp", _MEMORY)
    if editor.get("trainer.curriculum"):
        editor.problem(
            "trainer.curriculum",
            "CREDIT trains with one forecast_len a run; --drop trainer.curriculum "
            "leaves the stages out: then write a config for each, with its "
            "data.forecast_len, learning rate and epochs, and load_weights: true",
        )
    editor.drop("trainer.curriculum", "there are no stages")
    if editor.get("trainer.finetune"):
        editor.note(
            "trainer.finetune",
            "CREDIT ignores it: it trains all weights, and begins with random ones "
            "unless load_weights is true and save_loc holds a checkpoint, as `convert "
            "--to torch` writes",
        )
    cp = editor.get("trainer.parallelism.cp")
    if cp is not None:
        if editor.has("trainer.parallelism.domain"):
            editor.drop("trainer.parallelism.cp", "another name of domain")
        else:
            editor.move("trainer.parallelism.cp", "trainer.parallelism.domain", cp)
    for key in ParallelismConfig.model_fields:
        if key not in CREDIT_DEGREES:
            why = _DEGREES.get(key, "CREDIT has no such key")
            editor.drop(f"trainer.parallelism.{key}", why)
    remat = editor.get("trainer.activation_checkpoint")
    if isinstance(remat, str) and remat in _REMAT:
        why = f"CREDIT knows true and false, not {remat!r}; it changes no number"
        editor.compute("trainer.activation_checkpoint", _REMAT[remat], why)
    editor.default("trainer.use_scheduler", False, "CREDIT asks for it")
    if editor.get("trainer.scheduler") is None:
        editor.drop("trainer.scheduler", "CREDIT cannot read null")
    no_clipping(editor, "CREDIT cannot compare null")
    _model(editor)
    _loss(editor)
    # Metrics have weights, which CREDIT takes from scalers by default.
    if editor.get("metrics") and not editor.get("metrics.args.scaler_path"):
        why = "credit_jax's default without a scaler_path; CREDIT asks for one"
        editor.default("metrics.args.var_weighting", "none", why)
    _validation(editor)
    _cautions(editor)


def gen2_blocks(editor: ConfigEditor) -> None:
    """Completes blocks and forecasts for CREDIT's gen2, and records what it has not."""
    if editor.get("trainer.backprop") == "full":
        editor.problem(
            "trainer.backprop",
            "full: CREDIT's gen2 cuts gradients between steps; use truncated",
        )
    editor.drop("trainer.backprop", "CREDIT's gen2 has no other way")
    credit_blocks.refuse_blocks(editor)
    if editor.has("trainer"):
        credit_blocks.add_scored_fields(editor)
    if not isinstance(editor.get("inference"), dict):
        return
    editor.default("seed", credit_blocks.SEED, "CREDIT's rollout asks for it")
    for key, value in credit_blocks.forecast_section(editor.config).items():
        targets = key == "postblocks"
        why = "CREDIT's rollout has no target" if targets else "CREDIT's rollout asks"
        editor.compute(("inference", key), value, why)
    blocks = editor.get("inference.preblocks") or editor.get("preblocks", {})
    steps = (blocks.get("per_step") or {}).values()
    if any(block.get("type") == "era5_normalizer" for block in steps):
        editor.note(
            "inference.preblocks",
            "CREDIT's rollout has no inverse of era5_normalizer: forecasts are right "
            "in the first step alone, and normalized; convert --to torch writes blocks "
            "for forecasts that have one",
        )


def trainer_of_gen1(editor: ConfigEditor) -> None:
    """Converts `trainer.mode` in a gen2 config, and the trainer `ensemble-gen2`."""
    if editor.get("trainer.parallelism") is None and editor.has("trainer.mode"):
        mode_to_parallelism(editor)
    if editor.get("trainer.type") != ENSEMBLE:
        return
    editor.compute("trainer.type", "gen2", f"{ENSEMBLE} with the loss ring-crps")
    if editor.get("loss.type") is not None:
        editor.problem(
            "loss.type",
            f"{ENSEMBLE} trains by ring-crps of normalized fields and validates by "
            f"{editor.get('loss.type')}, which one loss cannot say; remove it, and "
            "write validation_loss",
        )
        return
    validation = editor.get("loss.training_loss", "mse")
    editor.default("loss.validation_loss", validation, f"{ENSEMBLE} validates by it")
    why = f"{ENSEMBLE} trains by it, whatever is written, and without weights"
    editor.compute("loss.training_loss", "ring-crps", why)
    for key in (*_LOSS_TERMS, "training_loss_parameters"):
        if editor.get(f"loss.{key}"):
            editor.drop(f"loss.{key}", why)
    if editor.get("trainer.grad_accum_every", 1) != 1:
        editor.compute("trainer.grad_accum_every", 1, f"{ENSEMBLE} never accumulates")


def _model(editor: ConfigEditor) -> None:
    pairs(editor)
    if isinstance(editor.get("model.padding_conf"), dict):
        editor.default("model.padding_conf.activate", True, "credit_jax's default")
    entry = MODELS.get(str(editor.get("model.type")))
    if entry is None or not issubclass(entry.config, StagesConfig):
        return
    # CREDIT's model makes tuples of the keys of its four stages.
    for key in _STAGES:
        value = editor.get(f"model.{key}")
        if type(value) is int:
            why = "CREDIT's model takes a list of four here"
            editor.compute(f"model.{key}", [value] * 4, why)
    dims = editor.get("model.dim")
    if isinstance(dims, list) and all(type(dim) is int for dim in dims):
        doubled = [dims[-1] // 2 ** (3 - index) for index in range(4)]
        if len(dims) == 4 and dims != doubled:
            editor.problem(
                "model.dim",
                f"{dims}: each stage of CREDIT's models is twice as wide as the one "
                f"before, {doubled} with this last one",
            )
    window = editor.get("model.local_window_size")
    takes_list = editor.get("model.type") in _COLUMN
    if isinstance(window, list) and window and not takes_list:
        if len(set(map(repr, window))) == 1:
            why = "CREDIT's model takes one number here"
            editor.compute("model.local_window_size", window[0], why)
        else:
            editor.problem(
                "model.local_window_size",
                f"{window}: CREDIT's YAML can hold one number for all stages only",
            )


def jax_keys(model: Mapping[str, Any]) -> list[str]:
    """The dotted keys of a `model` section that CREDIT's class does not accept."""
    entry = MODELS.get(str(model.get("type")))
    if entry is None or entry.key_table is None:
        return []
    keys = [f"model.{key}" for key in entry.key_table.extra_keys if key in model]
    if "clip_denoised" in (model.get("diffusion") or {}):
        keys.append("model.diffusion.clip_denoised")
    return keys


def _loss(editor: ConfigEditor) -> None:
    """Sets keys that CREDIT requires to the defaults of credit_jax."""
    for key in ("lead_weights", "level_weights", "tendency_weights"):
        if editor.get(f"loss.{key}") is not None:
            editor.problem(
                f"loss.{key}",
                f"CREDIT has no such weights; --drop loss.{key} leaves them out, for "
                "another loss",
            )
        editor.drop(f"loss.{key}", "there are no such weights")
    for key in ("loss.type", "loss.training_loss", "loss.validation_loss"):
        loss = LOSSES.get(str(editor.get(key)))
        if loss is not None and not loss.in_credit:
            editor.problem(
                key,
                f"CREDIT has no loss {editor.get(key)}; its nearest ones are spectral "
                "and power, of waves along longitude",
            )
    if editor.has("loss.type"):
        return
    training = editor.get("loss.training_loss", "mse")
    editor.default("loss.training_loss", "mse", "credit_jax's default")
    weighted = any(
        editor.get(f"loss.use_{w}_weights") for w in ("latitude", "variable")
    )
    if not weighted and editor.get("loss.validation_loss") is None:
        why = "CREDIT fails without it; credit_jax takes the training loss"
        editor.compute("loss.validation_loss", training, why)
        parameters = editor.get("loss.training_loss_parameters")
        if parameters is not None:
            editor.default("loss.validation_loss_parameters", parameters, why)
    if weighted or not editor.get("metrics"):
        for key in _LOSS_TERMS:
            editor.default(f"loss.{key}", False, "CREDIT asks for the key")
    # Gives every channel its weight: CREDIT reads them in order, without names.
    weights = editor.get("loss.variable_weights")
    if not editor.get("loss.use_variable_weights") or not isinstance(weights, dict):
        return
    # Numbers of levels of the predicted variables, in the order of the channels.
    counts, sources = {}, editor.get("data.source", {})
    for name, key in variables_of(sources, ("prognostic", "diagnostic")):
        source, _, dim, _ = key.split("/", 3)
        levels = sources[source].get("levels")
        deep = len(levels) if isinstance(levels, list) else editor.get("model.levels")
        counts[name] = deep if dim == "3d" else 1
    is_known = all(type(count) is int for count in counts.values())
    if not is_known or set(weights) != set(counts):
        return  # credit_jax refuses such weights, too
    ordered = {}
    for name, count in counts.items():
        value = weights[name]
        alike = count > 1 and not (isinstance(value, list) and len(value) > 1)
        one = value[0] if isinstance(value, list) and value else value
        ordered[name] = [one] * count if alike else value
    if list(weights) != list(ordered) or weights != ordered:
        editor.pop("loss.variable_weights")
        why = "one for each channel, in the order of the channels, as CREDIT reads them"
        editor.compute("loss.variable_weights", ordered, why)


def _validation(editor: ConfigEditor) -> None:
    """Copies every key of `data` to `validation_data`, as CREDIT requires."""
    valid = editor.get("validation_data")
    if not isinstance(valid, dict) or not valid:
        return
    for key in _DATES:
        for section in ("data", "validation_data"):
            if editor.get(f"{section}.{key}") is None:
                editor.drop(f"{section}.{key}", "null says nothing")
    # Start and end become one range if the other section has ranges.
    kinds = {}
    for section in ("data", "validation_data"):
        present = [key for key in _DATES if editor.has(f"{section}.{key}")]
        kinds[section] = present and present[-1] == "date_ranges"
    section = "validation_data" if kinds["data"] else "data"
    dates = [
        editor.get(f"{section}.{key}", editor.get(f"data.{key}")) for key in _DATES[:2]
    ]
    is_mixed = kinds["data"] != kinds["validation_data"] and any(kinds.values())
    if is_mixed and None not in dates:
        for key in _DATES[:2]:
            editor.moved(f"{section}.{key}", f"{section}.date_ranges")
        editor.put(f"{section}.date_ranges", [dates])
    for key in editor.keys("data"):
        if key != "source" and not editor.has(("validation_data", key)):
            why = "CREDIT asks for every key of data here"
            editor.compute(("validation_data", key), editor.get(("data", key)), why)


def _cautions(editor: ConfigEditor) -> None:
    """Notes what CREDIT does differently with the same keys."""
    for key in jax_keys(editor.get("model", {})):
        editor.note(
            key,
            "CREDIT's model has no such argument, and is not built with it; convert "
            "--to torch leaves it out",
        )
    for key, (neutral, why) in _OURS.items():
        if editor.get(key, neutral) != neutral:
            editor.note(key, why)
    rows, columns = (editor.get(f"model.image_{side}") for side in ("height", "width"))
    for name in editor.keys("data.source") if rows and rows == columns else ():
        source = ("data", "source", name)
        if editor.get((*source, "dataset_type")) == "local" and not editor.get(
            (*source, "grid_type")
        ):
            editor.note(
                (*source, "grid_type"),
                "CREDIT's rollout takes as many latitudes as longitudes for points "
                "without rows and columns; set grid_type: rectilinear where they are "
                "1-D, and curvilinear where they are 2-D",
            )
    parallelism = editor.get("trainer.parallelism", {})
    tensor, domain = (parallelism.get(key, 1) for key in ("tensor", "domain"))
    fsdp2, trainer = parallelism.get("data") == "fsdp2", editor.get("trainer", {})
    several = len(editor.keys("data.source")) > 1
    only = ONLY_WEIGHTS.get(str(editor.get("model.type")))
    editor.note_if(
        {
            f"model.type: {only}": only,
            f"trainer.parallelism.tensor: {tensor}: CREDIT refuses it for this "
            "model": tensor != 1,
            f"trainer.parallelism.domain: {domain}: CREDIT's own domain parallelism "
            "changes the numbers": domain != 1,
            # CREDIT recomputes blocks whose weights have a spectral norm.
            "trainer.activation_checkpoint: CREDIT's recomputation runs the power "
            "iteration of spectral norm again: losses differ by about 5e-5 while it "
            "has not converged; with false they do not, and more memory is "
            "needed": trainer.get("activation_checkpoint")
            and editor.get("model.use_spectral_norm", True)
            and editor.get("model.type") in _RECOMPUTED,
            "trainer.fsdp2_mp_policy: CREDIT reads it with data: fsdp2 alone, and "
            "takes float16 here": trainer.get("amp")
            and trainer.get("fsdp2_mp_policy") is not None
            and not fsdp2,
            "loss.variable_weights: CREDIT reads the variables of the first source "
            "alone here": several and editor.get("loss.use_variable_weights"),
        }
    )
    for name in editor.keys("postblocks.per_step"):
        block = ("postblocks", "per_step", name)
        if editor.get((*block, "type")) == "wind_artifact_filter" and editor.get(
            (*block, "args", "preserve_amplitude")
        ):
            editor.note(
                (*block, "args", "preserve_amplitude"),
                "CREDIT's gradient is NaN, and ends the training, in a batch where no "
                "predicted wind exceeds speed_threshold",
            )
    for name in editor.keys("preblocks.per_step"):
        block = ("preblocks", "per_step", name)
        params = (*block, "args", "scaler_params", "channels_last")
        if editor.get((*block, "type")) == "bridgescaler_transform" and (
            editor.get((*block, "args", "scaler_type")) and not editor.has(params)
        ):
            editor.note(
                params,
                "CREDIT 2026.2.0 fits a scaler for each longitude without it; false is "
                "one a level, as in credit_jax",
            )
