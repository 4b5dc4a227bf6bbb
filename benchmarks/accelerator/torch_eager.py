"""CREDIT's own eager training step, counted without a GPU.

Forward, MSE and backward run on meta tensors, which have shapes and no data. Every call
of an aten operation is a kernel: it reads its tensors and writes its results once.
Views are free. Precision is that of `torch.autocast("cuda", torch.bfloat16)`, CREDIT's
`trainer.amp`: weights in float32, products in bfloat16, softmax, norms, powers and sums
in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from benchmarks.accelerator.kernels import FORWARD, Kernel
from credit_torch_bridge.compare.credit_side import new_credit_model


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Autocast's lists for CUDA (PyTorch's documentation of torch.amp): operations in
# bfloat16, and in float32; all others keep the dtypes of their arguments.
_HALF = _words(
    """
    __matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm bmm einsum matmul mm mv
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear
    prelu scaled_dot_product_attention
    """
)
_SINGLE = _words(
    """
    __pow__ __rpow__ __rdiv__ __rtruediv__ cumprod cumsum exp expm1 group_norm
    l1_loss layer_norm log log1p log_softmax mse_loss norm normalize pow prod
    reciprocal rsqrt smooth_l1_loss softmax softmin softplus sum vector_norm
    """
)
# Calls that move no data.
_VIEWS = _words(
    """
    view _unsafe_view _reshape_alias reshape permute transpose t expand slice select
    unsqueeze squeeze detach alias as_strided split split_with_sizes unbind chunk
    narrow lift_fresh empty empty_like empty_strided unfold _local_scalar_dense
    """
)
# Calls that only write.
_FILLS = ("zeros", "zeros_like", "ones", "ones_like", "fill_", "zero_")
# Operations that run in the widest dtype of their arguments.
_WIDEST = _words("addcdiv addcmul cross dot tensordot")


class _Count(TorchDispatchMode):
    """Collects a `Kernel` for every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if func.is_view or name in _VIEWS or name.startswith(("sym_", "prim")):
            return result
        name = name.removesuffix("_nd")  # codespell:ignore nd
        read = 0 if name in _FILLS else _bytes((args, kwargs))
        count = flop_registry.get(func.overloadpacket)
        flops = float(count(*args, **kwargs, out_val=result)) if count else 0.0
        self.kernels.append(
            Kernel(name, name, "", FORWARD, 1, read + _bytes(result), flops, "")
        )
        return result


def eager_step(model: Mapping[str, Any], *, samples: int = 1) -> list[Kernel]:
    """Every kernel of one training step, without recomputation.

    Args:
        model: the `model:` section.
        samples: samples of the batch.
    """
    with torch.device("meta"):
        module = new_credit_model(model).train()
        channels, targets = _channels(model)
        grid = (model["image_height"], model["image_width"])
        x = torch.empty(samples, channels, model["frames"], *grid)
        y = torch.empty(samples, targets, 1, *grid)
        with _Count() as counted:
            with _Autocast():
                loss = torch.nn.functional.mse_loss(module(x).float(), y)
            loss.backward()
    return [*counted.kernels, _update(module)]


def _update(module: torch.nn.Module) -> Kernel:
    """Clipping and AdamW, as if each were one kernel for all parameters.

    The norm reads the gradient, its scaling reads and writes it; AdamW reads the
    gradient, and reads and writes the weight and two moments. `foreach` loops, torch's
    default, move more.
    """
    passes = 1 + 2 + 7
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    return Kernel("update", "update", "", FORWARD, 1, passes * size, 0.0, "")


class _Autocast(TorchFunctionMode):
    """Autocast as on CUDA, for tensors of any device.

    The bfloat16 copy of a weight is made once a step, as autocast caches it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[torch.Tensor, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _HALF:
            args, kwargs = tree_map(self._half, (tuple(args), kwargs))
        elif name in _SINGLE:
            args, kwargs = tree_map(_single, (tuple(args), kwargs))
        elif name in _WIDEST:
            tensors = [a for a in args if isinstance(a, torch.Tensor)]
            if any(t.dtype == torch.float32 for t in tensors):
                args, kwargs = tree_map(_single, (tuple(args), kwargs))
        return func(*args, **kwargs)

    def _half(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
            return value
        if not (value.is_leaf and value.requires_grad):
            return value.to(torch.bfloat16)
        if value not in self.cache:
            self.cache[value] = value.to(torch.bfloat16)
        return self.cache[value]


def _single(value: Any) -> Any:
    half = isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
    return value.float() if half else value


def _bytes(tree: Any) -> int:
    """Bytes of all tensors of a tree."""
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    return sum(t.numel() * t.element_size() for t in tensors)


def _channels(model: Mapping[str, Any]) -> tuple[int, int]:
    """Channels of the input and of the target, as CREDIT counts them."""
    fields = model["channels"] * model["levels"] + model["surface_channels"]
    targets = fields + model.get("output_only_channels", 0)
    return fields + model["input_only_channels"], targets
