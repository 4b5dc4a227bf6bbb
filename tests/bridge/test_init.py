"""The public names of `credit_torch_bridge`."""

import subprocess
import sys

import credit_torch_bridge

HEAVY = ("jax", "torch", "numpy", "pydantic", "flax", "einops")


def test_the_import_alone_imports_nothing_heavy():
    code = (
        "import sys, credit_torch_bridge; "
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_every_name_is_a_function_or_a_class(torch):
    names = credit_torch_bridge.__all__
    kinds = {n: type(getattr(credit_torch_bridge, n)).__name__ for n in names}
    assert set(kinds.values()) == {"function", "type"}, kinds
    assert {"from_torch", "to_torch", "compare_with_credit", "convert_config"} <= set(
        names
    )
