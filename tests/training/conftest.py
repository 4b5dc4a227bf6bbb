"""Fixtures: a small data set and small models for whole runs."""

import pytest


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A folder with the data set; tests must not change it."""
    from tests.data.world import write_world

    folder = tmp_path_factory.mktemp("world")
    write_world(folder)
    return folder


@pytest.fixture(scope="module")
def tiny_model():
    """Registers `model.type: tiny`."""
    from credit_jax.models import registry
    from tests.training.tiny import Tiny, TinyConfig

    with pytest.MonkeyPatch.context() as patch:
        entry = registry.ModelEntry(TinyConfig, Tiny)
        patch.setitem(registry.MODELS, "tiny", entry)
        yield


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Caches compiled programs across the files that use this fixture.

    The cache folder has no size limit: with a limit, JAX examines all cached programs
    whenever it writes one, which takes longer for thousands of small programs than
    compiling them.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    folder = tmp_path_factory.getbasetemp() / "programs"
    folder.mkdir(exist_ok=True)
    settings = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(folder),
        "jax_compilation_cache_max_size": -1,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
