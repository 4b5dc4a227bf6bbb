"""The public names of `credit_torch_bridge`."""

import subprocess
import sys

import credit_torch_bridge

HEAVY = {"jax", "torch", "numpy", "pydantic", "flax", "einops"}


def test_the_import_alone_imports_nothing_heavy(torch):
    code = f"import sys, credit_torch_bridge; assert not {HEAVY} & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", code], check=True)
    kinds = {type(getattr(credit_torch_bridge, n)) for n in credit_torch_bridge.__all__}
    assert {kind.__name__ for kind in kinds} == {"function", "type"}
