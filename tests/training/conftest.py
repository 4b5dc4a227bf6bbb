"""A small data set and a small model for whole runs."""

import pytest


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A folder with the data set; not to be changed."""
    from tests.data.world import write_world

    folder = tmp_path_factory.mktemp("world")
    write_world(folder)
    return folder


@pytest.fixture
def tiny_model(monkeypatch):
    """`model.type: tiny` is known."""
    from credit_jax.models import registry
    from tests.training.tiny import Tiny, TinyConfig

    monkeypatch.setitem(registry.MODELS, "tiny", registry.ModelEntry(TinyConfig, Tiny))


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """Equal programs of different tests are compiled once."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    names = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    before = {name: jax.config.values[name] for name in names}
    jax.config.update(names[0], str(tmp_path_factory.mktemp("programs")))
    jax.config.update(names[1], 0.0)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
