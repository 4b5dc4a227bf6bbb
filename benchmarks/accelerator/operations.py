"""Floating-point operations of an instruction: its products and convolutions.

A multiplication and an addition are two; elementwise operations do not count, as in
`credit_jax.models.flops`. Those of `credit_jax.kernels.gpu` are encoded in their names.
"""

from __future__ import annotations

import math
import re

import numpy as np

from benchmarks.accelerator.program import Computation, Instruction, Program, Shape

# Custom-call target of kernels written in Pallas.
KERNEL = "__gpu$xla.gpu.triton"

_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")


def operations(program: Program, where: Computation, instruction: Instruction) -> float:
    """Operations of one run of an instruction, those inside a fusion included."""
    if instruction.opcode == "fusion":
        return sum(
            _of_instruction(program, computation, held)
            for computation, _ in program.inner(instruction)
            for held in computation.values()
        )
    return _of_instruction(program, where, instruction)


def _of_instruction(
    program: Program, where: Computation, instruction: Instruction
) -> float:
    if instruction.opcode not in ("dot", "convolution", "custom-call"):
        return 0.0
    target = instruction.attribute(r'custom_call_target="([^"]*)"') or ""
    if target == KERNEL:
        # As `kernels.gpu.call.call_kernel` names them.
        flops = re.findall(r"_(\d+)_flops\b", instruction.op_name)
        return float(flops[-1]) if flops else 0.0
    arrays = [o.shapes[0] for o in program.operands(where, instruction) if o.shapes]
    if len(arrays) < 2:
        return 0.0
    out = instruction.shapes[0]
    if instruction.opcode == "dot":
        contracted = instruction.attribute(r"lhs_contracting_dims=\{([\d,]*)\}")
        return _product(arrays[0], contracted or "", out)
    if instruction.opcode == "convolution":
        return _convolution(instruction.text, arrays, out)
    if "matmul" in target or "gemm" in target:
        contracted = instruction.attribute(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
        return _product(arrays[0], (contracted or "").replace('"', ""), out)
    if "__cudnn$conv" in target:
        return _library_convolution(instruction, target, arrays, out)
    return 0.0


def _product(left: Shape, contracted: str, out: Shape) -> float:
    depth = math.prod(left.dims[int(d)] for d in contracted.split(",") if d)
    return 2.0 * depth * math.prod(out.dims)


def _library_convolution(
    instruction: Instruction, target: str, arrays: list[Shape], out: Shape
) -> float:
    """Operations of a cuDNN convolution or its gradients, which share its labels."""
    labels = _LABELS.search(instruction.text)
    assert labels, instruction.text[:200]
    field, kernel = {
        "__cudnn$convBackwardInput": (arrays[0], arrays[1]),
        "__cudnn$convBackwardFilter": (arrays[1], out),
    }.get(target, (out, arrays[1]))
    depth = math.prod(kernel.dims) / kernel.dims[labels[2].index("o")]
    return 2.0 * depth * math.prod(field.dims)


def _convolution(text: str, arrays: list[Shape], out: Shape) -> float:
    """Operations of an HLO convolution; taps on padding zeros do not count."""
    labels = _LABELS.search(text)
    assert labels, text[:200]
    left, right, result = labels.groups()
    features = arrays[1].dims[right.index("i")]
    pairs = out.dims[result.index("b")] * out.dims[result.index("f")]
    window = _window(text)
    for position, label in enumerate(str(n) for n in range(len(right) - 2)):
        pairs *= _valid(
            arrays[0].dims[left.index(label)],
            out.dims[result.index(label)],
            {name: values[position] for name, values in window.items()},
        )
    return 2.0 * pairs * features


def _window(text: str) -> dict[str, list[str]]:
    match = _WINDOW.search(text)
    parts = (part.split("=") for part in match[1].split()) if match else ()
    return {name: values.split("x") for name, values in parts}


def _valid(size: int, out: int, window: dict[str, str]) -> int:
    """Number of (output, tap) pairs along one dim that meet a value of the input."""
    taps = np.arange(int(window["size"])) * int(window.get("rhs_dilate", 1))
    low = int(window.get("pad", "0_0").split("_")[0])
    spread = int(window.get("lhs_dilate", 1))
    start = np.arange(out) * int(window.get("stride", 1)) - low
    met = start[:, None] + taps[None, :]
    inside = (met >= 0) & (met <= (size - 1) * spread) & (met % spread == 0)
    return int(inside.sum())
