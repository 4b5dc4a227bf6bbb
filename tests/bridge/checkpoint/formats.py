"""Writes a run of CREDIT in every checkpoint format that CREDIT has.

`write(name, source, target, model)` writes the files of `source`, the `save_loc` of a
CREDIT run, to the folder `target` in the format `name` and returns the path to convert.
"""

import shutil
from collections import OrderedDict
from typing import Any

import safetensors.torch
import torch

MAIN, AVERAGE = "checkpoint.pt", "checkpoint_ema.pt"


def load(folder, name=MAIN):
    return torch.load(folder / name, weights_only=True)


def renamed(content, change):
    """Returns a checkpoint whose weights, or whose averaged weights, are renamed."""
    model = content["model_state_dict"]
    if "shadow" in model:
        shadow = OrderedDict((change(k), v) for k, v in model["shadow"].items())
        return content | {"model_state_dict": model | {"shadow": shadow}}
    named = OrderedDict((change(k), v) for k, v in model.items())
    return content | {"model_state_dict": named}


def by_name(content):
    """Returns the optimizer's state as fsdp2 saves it: by name, betas as a list."""
    model, optimizer = content["model_state_dict"], content["optimizer_state_dict"]
    names = [key for key in model if not key.endswith(("_u", "_v"))]
    group = dict(optimizer["param_groups"][0])
    group["betas"], group["params"] = list(group["betas"]), names
    state = {names[i]: entry for i, entry in optimizer["state"].items()}
    return content | {"optimizer_state_dict": {"state": state, "param_groups": [group]}}


def _renaming(change):
    def write(source, target, model):
        name_of = change(model)
        for name in (MAIN, AVERAGE):
            torch.save(renamed(load(source, name), name_of), target / name)
        return target

    return write


def _domain(model):
    """Maps names of a model to those after CREDIT's domain-parallel conversion."""
    from tests.support.credit_modules import credit_attribute

    before = [p.data_ptr() for p in model.state_dict().values()]
    names = list(model.state_dict())
    convert = credit_attribute("domain_parallel.convert", "convert_to_domain_parallel")
    convert(model, None)
    after = {p.data_ptr(): name for name, p in model.state_dict().items()}
    change = {name: after[place] for name, place in zip(names, before, strict=True)}
    assert sum(old != new for old, new in change.items()) > 80
    return change.__getitem__


def _old_branches(model):
    return lambda key: key.replace(".0.convs.0.1.", ".0.convs.0.").replace(
        ".0.convs.1.1.", ".0.convs.1."
    )


def _copied(source, target, model):
    for name in (MAIN, AVERAGE):
        shutil.copyfile(source / name, target / name)
    return target


def _fsdp2(source, target, model):
    torch.save(by_name(load(source)), target / MAIN)
    shutil.copyfile(source / AVERAGE, target / AVERAGE)
    return target / MAIN


def _fsdp2_resumed(source, target, model):
    """As `_fsdp2`, with the zero moments that a resume adds where no gradient is."""
    content = by_name(load(source))
    optimizer, weights = content["optimizer_state_dict"], content["model_state_dict"]
    for name in optimizer["param_groups"][0]["params"]:
        zeros = torch.zeros(weights[name].shape)
        fresh = {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": zeros}
        optimizer["state"].setdefault(name, fresh)
    torch.save(content, target / MAIN)
    shutil.copyfile(source / AVERAGE, target / AVERAGE)
    return target


def _fsdp1(source, target, model):
    content = by_name(load(source))
    torch.save(content.pop("model_state_dict"), target / "model_checkpoint.pt")
    torch.save(content.pop("optimizer_state_dict"), target / "optimizer_checkpoint.pt")
    torch.save(content, target / MAIN)
    shutil.copyfile(source / AVERAGE, target / AVERAGE)
    return target


def _bare(source, target, model):
    torch.save(load(source)["model_state_dict"], target / "model_checkpoint.pt")
    return target


def _bare_file(source, target, model):
    torch.save(load(source)["model_state_dict"], target / "weights.pt")
    return target / "weights.pt"


def _legacy_file(source, target, model):
    state = load(source)["model_state_dict"]
    path = target / "weights.pt"
    torch.save(state, path, _use_new_zipfile_serialization=False)
    return path


def _safetensors(source, target, model):
    state = load(source)["model_state_dict"]
    safetensors.torch.save_file(dict(state), target / "model.safetensors")
    return target / "model.safetensors"


def _safetensors_shards(source, target, model):
    state = list(load(source)["model_state_dict"].items())
    for i in range(3):
        path = target / f"model-{i}.safetensors"
        safetensors.torch.save_file(dict(state[i::3]), path)
    return target


# Formats with the whole state.
WHOLE = {
    "none": _copied,
    "fsdp2": _fsdp2,
    "fsdp2 resumed": _fsdp2_resumed,
    "fsdp of generation 1": _fsdp1,
    "domain": _renaming(_domain),
    "older branches": _renaming(_old_branches),
    "older branches, domain, wrapped": _renaming(
        lambda model: lambda key: f"module._orig_mod.{_old_branches(model)(key)}"
    ),
    "module.": _renaming(lambda model: lambda key: f"module.{key}"),
    "_orig_mod.": _renaming(lambda model: lambda key: f"_orig_mod.{key}"),
    "checkpoint wrapper": _renaming(
        lambda model: (
            lambda key: key.replace(
                ".layers.0.0.", ".layers.0._checkpoint_wrapped_module.0."
            )
        )
    ),
}
# Weights alone.
BARE = {
    "model_checkpoint.pt": _bare,
    "bare file": _bare_file,
    "before zip files": _legacy_file,
    "safetensors": _safetensors,
    "safetensors in shards": _safetensors_shards,
}


def with_convolutions(state: dict[str, Any]) -> dict[str, Any]:
    """Returns a NextGen WXFormer state dict in the older layout with convolutions."""
    old: dict[str, Any] = {}
    for key, value in state.items():
        stem, _, leaf = key.rpartition(".")
        if stem.endswith(".to_q"):
            stem = stem.removesuffix(".to_q")
            parts = [state[f"{stem}.to_{name}.{leaf}"] for name in "qkv"]
            fused = parts[0] if leaf == "weight_v" else torch.cat(parts)
            is_kernel = leaf in ("weight", "weight_orig")
            old[f"{stem}.to_qkv.{leaf}"] = (
                fused[:, :, None, None] if is_kernel else fused
            )
        elif not stem.endswith((".to_k", ".to_v")):
            pointwise = stem.endswith((".to_out", ".layers.1", ".layers.4"))
            is_kernel = leaf in ("weight", "weight_orig") and ".dpb." not in stem
            old[key] = value[:, :, None, None] if pointwise and is_kernel else value
    return old
