"""One forward and backward pass of serial CREDIT, the reference."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

from credit_jax.models.diffusion.process import NOISED, TIME, DiffusionKeys
from credit_jax.models.graph.graph import read_edges
from credit_jax.models.registry import MODELS, torch_model
from credit_torch_bridge.compare.jax_side import ModelOutputs, import_credit


def register_models(config: Mapping[str, Any]) -> None:
    """Runs the files of a config's `custom_models`, as CREDIT does."""
    files = config.get("custom_models")
    if not files:
        return
    try:
        import_credit("models").load_custom_model_modules({"custom_models": files})
    except (OSError, ImportError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"CREDIT does not register the classes of the config: {error}"
        ) from None


def new_credit_model(section: Mapping[str, Any]) -> torch.nn.Module:
    """Builds a model of CREDIT, initialized by torch's generator."""
    arguments = copy.deepcopy(dict(section))
    model_type = arguments.pop("type")
    registry = import_credit("models")._MODEL_REGISTRY
    if model_type not in registry:
        raise ValueError(
            f"CREDIT has no model {model_type!r}; custom_models of the config lists "
            "files that register PyTorch classes"
        )
    # CREDIT's models by module and name, those of its `register_model` by class.
    model, name, *_ = registry[model_type]
    if isinstance(model, str):
        model = getattr(import_credit(model.removeprefix("credit.")), name)
    for key in torch_model(model_type).extra_keys:
        arguments.pop(key, None)
    if not issubclass(MODELS[model_type].config, DiffusionKeys):
        return model(**arguments)
    process = dict(arguments["diffusion"])
    # A key of credit_jax only.
    process.pop("clip_denoised", None)
    seen = {key: process.pop(key) for key in ("self_condition",) if key in process}
    seen["condition"] = process.pop("condition", True)
    # The constructor of CREDIT's ModifiedGaussianDiffusion calls `isinstance` with one
    # argument, which always fails; while it runs, CREDIT's module has a replacement
    # that returns False in that case.
    diffusion, network = import_credit("diffusion"), model(**arguments, **seen)
    is_instance = lambda *args: len(args) == 2 and isinstance(*args)  # noqa: E731
    with mock.patch.object(diffusion, "isinstance", is_instance, create=True):
        return diffusion.ModifiedGaussianDiffusion(network, **process)


@contextmanager
def failures_of_credit(subject: str) -> Iterator[None]:
    """Turns an error of CREDIT's own code, that fails to build or run, into ours."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"CREDIT fails to {subject} this model ({type(error).__name__}: {error}), "
            "so that there is nothing to compare with; credit_jax runs some models "
            "that CREDIT does not run, see docs/numerics_record.md"
        ) from error


def build_credit(
    section: Mapping[str, Any], state: Mapping[str, np.ndarray]
) -> torch.nn.Module:
    """Builds a model of CREDIT in evaluation mode with the weights of a state dict."""
    with failures_of_credit("build"):
        model = new_credit_model(section)
    tensors = {key: torch.from_numpy(np.array(a)) for key, a in state.items()}
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise ValueError(f"CREDIT does not load these weights: {error}") from None
    return model.eval()


def cast_credit(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Casts a model of CREDIT to another dtype, in place."""
    # The `to` of CREDIT's graph also casts the indices of its nodes.
    torch.nn.Module.to(model, dtype)
    attributes = getattr(model, "edge_attr", None)
    if isinstance(attributes, torch.Tensor):
        model.edge_attr = attributes.to(dtype)
    for module in model.modules():
        # In layers that are never called, spectral norm leaves a `weight` that shares
        # the memory of `weight_orig`, which casting separates.
        if "weight_orig" in module._parameters and not module.weight.requires_grad:
            module.weight = module.weight_orig.data
    return model


def share_edges(model: Any, section: Mapping[str, Any]) -> None:
    """Gives CREDIT's graph, if it is one, the edge attributes of credit_jax."""
    if getattr(model, "edge_attr", None) is not None:
        attributes = read_edges(section["edge_path"]).attributes
        # Both sides compute them in float32, with different rounding.
        model.edge_attr = torch.from_numpy(attributes.copy())


@contextmanager
def floats_of(dtype: torch.dtype) -> Iterator[None]:
    """A context in which `Tensor.float()` casts to this dtype."""
    with mock.patch.object(torch.Tensor, "float", lambda self: self.to(dtype)):
        yield


@contextmanager
def replayed_noise(drawn: Sequence[np.ndarray]) -> Iterator[None]:
    """A context in which `torch.randn` returns arrays of `recorded_noise`."""
    remainder = iter(drawn)

    def randn(*_: Any, **__: Any) -> torch.Tensor:
        array = next(remainder)
        return torch.from_numpy(np.moveaxis(array, -1, 1) if array.ndim == 4 else array)

    with mock.patch.object(torch, "randn", randn):
        yield


@contextmanager
def recorded_noise() -> Iterator[list[np.ndarray]]:
    """A context that lists what `torch.randn` draws, channels last."""
    draw, drawn = torch.randn, list[np.ndarray]()

    def randn(*args: Any, **options: Any) -> torch.Tensor:
        values = draw(*args, **options)
        array = values.detach().numpy().copy()
        drawn.append(np.moveaxis(array, 1, -1) if array.ndim == 4 else array)
        return values

    with mock.patch.object(torch, "randn", randn):
        yield drawn


def run_credit(
    model: torch.nn.Module, inputs: Mapping[str, np.ndarray], blocks: Sequence[str]
) -> ModelOutputs:
    """Runs one forward and backward pass of a model from `build_credit`."""
    seen: dict[str, np.ndarray] = {}
    hooks = [
        module.register_forward_hook(
            lambda _, __, output, name=name: seen.update(
                {name: output.detach().numpy().copy()}
            )
        )
        for name, module in model.named_modules()
        if name in blocks
    ]
    try:
        model.zero_grad()
        with failures_of_credit("run"):
            tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
            prediction = call_network(network_of(model), tensors)
        (prediction**2).mean().backward()
    finally:
        for hook in hooks:
            hook.remove()
    gradients = {
        name: p.grad.numpy().copy()
        for name, p in model.named_parameters()
        if p.grad is not None
    }
    return ModelOutputs(prediction.detach().numpy(), seen, gradients)


def network_of(model: Any) -> Any:
    """A model of CREDIT, or the network of its process."""
    is_process = type(model).__name__ == "ModifiedGaussianDiffusion"
    return model.model if is_process else model


def call_network(network: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The output of CREDIT's network."""
    if inputs.keys() == {"x"}:
        return network(inputs["x"])
    if NOISED not in inputs:
        return network(**inputs)
    return network(inputs[NOISED], inputs[TIME][:, 0], None, inputs["x"])
