"""Set-up of all tests: eight simulated devices, run-time shape checks, fixtures.

Nothing of `credit_jax` may be imported here at module level: the jaxtyping hook has to
be in place before the first import of the package.
"""

import gc
import os
import pickle
import sys

# CREDIT's spawned loaders and torch share two cores with eight simulated devices.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Lowering gives every operation its whole call stack, which takes 7 % of the time of a
# model's test; one place is enough.
os.environ.setdefault("JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS", "false")

import jax
import pytest
from filelock import FileLock

# As the commands do (`parallel.compiler`): by default garbage collection takes a fifth
# of the tracing time.
gc.set_threshold(100_000, 50, 100)

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
# The user's cache of compiled programs stays as it is, whatever command a test runs.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    jax.config.update("jax_enable_compilation_cache", False)
# (4,) + (2, 4) is an error: implicit rank promotion hides bugs where lengths happen to
# agree.
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_addoption(parser):
    """Adds the options of `tests.suite`."""
    since = "of the slow tests, run those that the change since then reaches"
    parser.addoption("--slow-since", metavar="COMMIT", help=since)
    without = "leave out the tests that need torch or CREDIT"
    parser.addoption("--without-torch", action="store_true", help=without)


def pytest_configure(config):
    """Loads the plugin of these tests, and sets how programs are compiled.

    That takes a third of the time so. Parts of a program are compiled serially: the
    other core runs another test process.
    """
    from credit_jax.parallel.compiler import add_flags, compile_quickly

    compile_quickly()
    add_flags({"xla_cpu_parallel_codegen_split_count": 1})
    config.pluginmanager.import_plugin("tests.suite")


@pytest.fixture
def rng():
    """A numpy generator with a fixed seed."""
    import numpy as np

    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def seeded_torch():
    """Seeds torch, so that modules have the same initial weights in every run."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def custom_objects_of_a_test():
    """Removes what a test registers: another one may list what there is."""
    from credit_jax.config import custom_objects
    from credit_jax.config.components import REGISTRIES

    before = set(custom_objects._REGISTERED)
    yield
    for object_type, name in set(custom_objects._REGISTERED) - before:
        del custom_objects._REGISTERED[object_type, name]
        del REGISTRIES[object_type][name]


@pytest.fixture
def make_mesh():
    """`make_mesh(dp=1, tp=1, domain=1)` on the simulated devices."""
    from tests.support import make_mesh

    return make_mesh


@pytest.fixture(scope="session")
def torch():
    """PyTorch; a test that needs it is skipped where it is missing."""
    return pytest.importorskip("torch", reason="no torch: make test installs it")


@pytest.fixture(scope="session")
def credit(torch):
    """CREDIT, the PyTorch reference (`tests.reference`); likewise."""
    from importlib.util import find_spec

    if find_spec("credit") is None:
        pytest.skip("CREDIT is not installed: make test installs it")
    from tests import reference

    return reference


@pytest.fixture(scope="session")
def credit_run(credit, tmp_path_factory):
    """The data folder, and CREDIT's training run there with GEN2_CONFIG.

    All processes of the tests share it.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, record = base / "credit", base / "credit.pickle"
    with FileLock(base / "credit.lock"):
        if not record.exists():
            folder.mkdir()
            credit.write_dataset(folder)
            run = credit.credit_train(credit.GEN2_CONFIG, folder)
            record.write_bytes(pickle.dumps(run))
    return folder, pickle.loads(record.read_bytes())
