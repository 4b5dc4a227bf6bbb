"""The float8 products of a step, in its trace and in its optimized program."""

from __future__ import annotations

from typing import Any

import jax

from benchmarks.accelerator.program import Program
from benchmarks.compiled_step import equations

PREFIX = "f8"


def traced_products(jaxpr: Any) -> int:
    """Products of float8 values in a jaxpr; one within a loop counts once.

    Args:
        jaxpr: a closed one, such as `jitted.trace(...).jaxpr`.
    """
    return sum(
        equation.primitive is jax.lax.dot_general_p
        and all("float8" in str(operand.aval.dtype) for operand in equation.invars)
        for equation in equations(jaxpr.jaxpr)
    )


def float8_of(program: Program) -> dict[str, int]:
    """Counts products and conversions of float8 values in a program.

    Returns:
        "products" whose two operands are float8, "mixed" ones of which one is, and
        "widened": conversions of float8 values to another dtype. A product within a
        loop counts once.
    """
    counts = {"products": 0, "mixed": 0, "widened": 0}
    for computation in program.computations.values():
        for instruction in computation.values():
            taken = [
                shape.dtype.startswith(PREFIX)
                for operand in program.operands(computation, instruction)
                for shape in operand.shapes[:1]
            ]
            if instruction.opcode == "dot":
                counts["products"] += all(taken)
                counts["mixed"] += any(taken) and not all(taken)
            if instruction.opcode == "convert" and any(taken):
                counts["widened"] += not instruction.shapes[0].dtype.startswith(PREFIX)
    return counts


def float8_problems(program: dict[str, Any]) -> list[str]:
    """Lists problems of the float8 products of an account, if it has any."""
    if "float8" not in program:
        return []
    traced, products = program["float8_traced"], program["float8_products"]
    lines = []
    if not traced or products["products"] != traced:
        lines.append(
            f"{products['products']} products of float8 values in the program, "
            f"expected the {traced} of the trace, and some"
        )
    if products["mixed"] or products["widened"]:
        lines.append(
            f"{products['mixed']} products of float8 and wider values, "
            f"{products['widened']} float8 values converted back: some are not "
            "multiplied as float8"
        )
    return lines
