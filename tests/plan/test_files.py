"""Files of a config, by dotted key."""

from credit_jax.config.data import DataConfig
from credit_jax.plan.files import static_files
from tests.training.tiny import tiny_config


def test_files_of_static_fields_alone(tmp_path):
    raw = tiny_config(tmp_path, tmp_path / "run")["data"]
    kinds = raw["source"]["ERA5"]["variables"]
    named = static_files(DataConfig(**raw), "data")
    assert named == {
        "data.source.ERA5.variables.static.path": kinds["static"]["path"],
    }
    kinds["static"]["path"] = kinds["prognostic"]["path"]
    assert static_files(DataConfig(**raw), "data") == {}, "times are added to it"
    del kinds["static"]
    assert static_files(DataConfig(**raw), "data") == {}
