"""gen1's `model.post_conf`, and `model.gen1_post_conf` of credit_jax."""

from __future__ import annotations

from typing import Any

from credit_jax.models.common.post_conf import Gen1PostConf, PostConfData
from credit_torch_bridge.config.editor import ConfigEditor

GEN1, OURS = "model.post_conf", "model.gen1_post_conf"
_BLOCKS = [
    name
    for name in Gen1PostConf.model_fields
    if name.endswith(("_fixer", "_updown", "skebs"))
]
_LISTS = ("variables", "surface_variables", "diagnostic_variables")
_OUTSIDE = "activate_outside_model"
# Blocks that gen1's trainer can apply outside of the model, after those inside.
_TRAINED_OUTSIDE = ("global_mass_fixer", "global_water_fixer", "global_energy_fixer")


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
    conf = editor.get(GEN1)
    active = active_physics(conf)
    if not active:
        editor.drop(GEN1, "nothing in it is active")
        return
    _check_order(editor, active)
    editor.drop((*GEN1.split("."), "activate"), "a block is active")
    for name in editor.keys(GEN1):
        if name not in active:
            editor.drop(f"{GEN1}.{name}", _why_dropped(name, conf[name]))
    blocks = {name: dict(conf[name]) for name in active}
    for block in blocks.values():
        block.pop(_OUTSIDE, None)
    editor.moved(GEN1, OURS, "gen2's name for it is dropped in training")
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


def _why_dropped(name: str, block: Any) -> str:
    if name not in _BLOCKS:
        return "no model of gen1 reads it"
    if isinstance(block, dict) and block.get("activate"):
        return "gen1's training does not apply it outside of the model"
    return "not active"


def _check_order(editor: ConfigEditor, active: list[str]) -> None:
    """Records blocks with another order in credit_jax: gen1 runs outside ones last."""
    outside = [bool(editor.get(f"{GEN1}.{name}.{_OUTSIDE}")) for name in active]
    if outside != sorted(outside):
        editor.problem(
            GEN1,
            f"{active[outside.index(True)]} runs outside of the model, after "
            f"{active[-1 - outside[::-1].index(False)]}, which runs inside; here they "
            "run in the order of CREDIT's blocks: set activate_outside_model alike",
        )


def refuse_for_gen2(editor: ConfigEditor, key: str, names: list[str]) -> None:
    """Records that CREDIT's gen2 has no corrections inside the model."""
    editor.problem(
        key,
        f"{', '.join(names)} active: gen1 corrects inside the model, before the loss, "
        f"and gen2's training does not; --drop {key} leaves it out",
    )
