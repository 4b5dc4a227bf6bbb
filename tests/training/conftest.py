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


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Equal programs of the files that have this fixture are compiled once.

    They are kept in a folder without a limit of its size: with one, JAX looks at all
    programs that are there whenever it writes another, which for thousands of small
    ones takes longer than to compile them.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    folder = tmp_path_factory.getbasetemp() / "programs"
    folder.mkdir(exist_ok=True)
    settings = {
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
