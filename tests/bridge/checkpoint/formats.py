"""Writes a run of CREDIT in every checkpoint format that CREDIT has."""

import os
from collections import OrderedDict
from typing import Any

import safetensors.torch
import torch

from tests.bridge.runs import read_torch

MAIN, AVERAGE = "checkpoint.pt", "checkpoint_ema.pt"


class Creates:
    """Unpickling it runs code, which creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def by_name(content):
    """Returns the optimizer's state as fsdp2 saves it: by name, betas as a list."""
    model, optimizer = content["model_state_dict"], content["optimizer_state_dict"]
    names = [key for key in model if not key.endswith(("_u", "_v"))]
    group = dict(optimizer["param_groups"][0])
    group["betas"], group["params"] = list(group["betas"]), names
    state = {names[i]: entry for i, entry in optimizer["state"].items()}
    return content | {"optimizer_state_dict": {"state": state, "param_groups": [group]}}


def with_zeros(content):
    """As `by_name`, with the zero moments that a resume adds where no gradient is."""
    content = by_name(content)
    optimizer, weights = content["optimizer_state_dict"], content["model_state_dict"]
    for name in optimizer["param_groups"][0]["params"]:
        zeros = torch.zeros(weights[name].shape)
        fresh = {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": zeros}
        optimizer["state"].setdefault(name, fresh)
    return content


def of_generation_1(files, model):
    content = by_name(files[MAIN])
    parts = {name: content.pop(f"{name}_state_dict") for name in ("model", "optimizer")}
    split = {f"{name}_checkpoint.pt": part for name, part in parts.items()}
    return {**files, **split, MAIN: content}


def renaming(change):
    """Weights, and averaged weights, with other names: `change(model)(name)`."""

    def renamed(files, model):
        name_of = change(model)

        def rename(state):
            return OrderedDict((name_of(key), value) for key, value in state.items())

        main, average = (files[name]["model_state_dict"] for name in (MAIN, AVERAGE))
        average = average | {"shadow": rename(average["shadow"])}
        states = {MAIN: rename(main), AVERAGE: average}
        return {
            name: files[name] | {"model_state_dict": state}
            for name, state in states.items()
        }

    return renamed


def domain(model):
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


def old_branches(key):
    for branch in "01":
        key = key.replace(f".0.convs.{branch}.1.", f".0.convs.{branch}.")
    return key


def wrapped(key):
    return key.replace(".layers.0.0.", ".layers.0._checkpoint_wrapped_module.0.")


# Formats with the whole state: the files of a run, by those of data parallelism.
WHOLE = {
    "none": lambda files, model: files,
    "fsdp2": lambda files, model: {**files, MAIN: by_name(files[MAIN])},
    "fsdp2 resumed": lambda files, model: {**files, MAIN: with_zeros(files[MAIN])},
    "fsdp of generation 1": of_generation_1,
    "domain": renaming(domain),
    "older branches": renaming(lambda model: old_branches),
    "older branches, domain, wrapped": renaming(
        lambda model: lambda key: f"module._orig_mod.{old_branches(key)}"
    ),
    "module.": renaming(lambda model: lambda key: f"module.{key}"),
    "_orig_mod.": renaming(lambda model: lambda key: f"_orig_mod.{key}"),
    "checkpoint wrapper": renaming(lambda model: wrapped),
}


def write_whole(name, source, target, model):
    """Writes a run, the `save_loc` of CREDIT, in a format; returns what to convert."""
    files = {file: read_torch(source, file) for file in (MAIN, AVERAGE)}
    for file, content in WHOLE[name](files, model).items():
        torch.save(content, target / file)
    return target / MAIN if name == "fsdp2" else target


# Weights alone.
BARE = "model_checkpoint.pt", "file.pt", "old.pt", "safetensors", "shards.safetensors"


def write_bare(name, source, target):
    state, path = read_torch(source)["model_state_dict"], target / name
    if name.endswith("safetensors"):
        parts = [*state.items()]
        number = 3 if name.startswith("shards") else 1
        for i in range(number):
            file = target / f"model-{i}.safetensors"
            safetensors.torch.save_file(dict(parts[i::number]), file)
        return target if number > 1 else file
    torch.save(state, path, _use_new_zipfile_serialization=name != "old.pt")
    return target if name == "model_checkpoint.pt" else path


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
