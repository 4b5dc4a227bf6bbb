"""What holds for every test: eight simulated devices, strict shapes.

Nothing of `credit_jax` may be imported here at module level: the jaxtyping hook has to
be in place before the first import of the package.
"""

import gc
import os
import sys

# Programs of tests run once: compile them three times as fast, less optimized.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_backend_optimization_level=0",
        # One piece of a program after the other: the other core has its own test.
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
)
# CREDIT's spawned loaders and torch share two cores with eight simulated devices.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import pytest

NUM_DEVICES = 8

# As for the commands (`parallel.compiler`): collections take a fifth of tracing else.
gc.set_threshold(100_000, 50, 100)

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
# (4,) + (2, 4) is an error: a vector that fits a field by luck of its length is a bug.
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_configure(config):
    """The plugins of these tests; with CI=true a skipped test fails."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        config.pluginmanager.import_plugin("tests.skips_fail")
    for name in ("longest_first", "bounded_memory"):
        config.pluginmanager.import_plugin(f"tests.{name}")


@pytest.fixture
def rng():
    """A numpy generator, the same in every run."""
    import numpy as np

    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def seeded_torch():
    """The modules that a test makes have the same weights in every run."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def make_mesh():
    """`make_mesh(dp=1, tp=1, domain=1)` on the simulated devices."""
    from tests.support import make_mesh

    return make_mesh


@pytest.fixture(scope="session")
def credit():
    """CREDIT, the PyTorch reference (`tests.reference`).

    A test that needs it is skipped where it is missing, and fails with CI=true.
    """
    pytest.importorskip("torch", reason="CREDIT needs torch: make test installs both")
    from importlib.util import find_spec

    if find_spec("credit") is None:
        pytest.skip("CREDIT is not installed: make test installs it")
    from tests import reference

    return reference


@pytest.fixture(scope="session")
def credit_run(credit, tmp_path_factory):
    """Folder with the data, and what CREDIT's trainer did there with GEN2_CONFIG."""
    folder = tmp_path_factory.mktemp("credit")
    credit.write_dataset(folder)
    return folder, credit.credit_train(credit.GEN2_CONFIG, folder)
