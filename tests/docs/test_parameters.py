"""docs/parameters.md: its blocks run, in order."""

import jax
import pytest
import yaml

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.training.optimizer import adamw
from credit_jax.training.restore import RunStore
from credit_jax.training.state import init_state
from tests.docs.test_library import DOCS, MODEL, blocks
from tests.support import make_mesh


@pytest.mark.slow
def test_the_page_runs(tmp_path, monkeypatch):
    folder = tmp_path / "RUN"
    folder.mkdir()
    (folder / "model.yml").write_text(yaml.safe_dump({"model": MODEL}))
    model = build_parallel_model(MODEL, make_mesh())
    state = init_state(model, adamw(), jax.random.key(0))
    store = CheckpointStore(folder)
    RunStore(store, model.model_def.param_specs).save(1, state, Progress())
    store.close()
    monkeypatch.chdir(tmp_path)
    page, names = DOCS / "parameters.md", {}
    for line, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), names)
    assert {"moved", "changed", "forecast"} <= set(names)
