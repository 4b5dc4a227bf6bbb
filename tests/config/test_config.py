import pytest

from credit_jax.config import ConfigError, build_config
from credit_jax.config.base import ConfigWarning
from credit_jax.config.data import num_samples
from credit_jax.parallel.params.precision import Float8
from credit_jax.plan.run import precision_of
from tests.config.example import example

ERA5 = "data__source__ERA5"


def problems(**changes) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as error:
        build_config(example(**changes))
    return error.value.problems


def test_the_example_is_valid():
    config = build_config(example())
    assert config.seed == 42
    assert config.validation_data == config.data
    assert config.trainer.training_metric == "valid_loss"


def test_validation_inherits_what_it_does_not_give():
    config = build_config(example(validation_data={"start_datetime": "2000-01-05"}))
    assert config.validation_data.start_datetime == "2000-01-05"
    assert config.validation_data.end_datetime == "2000-01-14"
    assert config.validation_data.source == config.data.source


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data__forecast_len": 2, "data__backprop_on_timestep": [3]},
            "data.backprop_on_timestep: got [3], but data.forecast_len is 2",
        ),
        ({"data__forecast_len": 0}, "gen2 counts one step as 1"),
        ({"data__timestep": "soon"}, "data.timestep: must be a positive duration"),
        ({"data__timestep": "-6h"}, "data.timestep: must be a positive duration"),
        ({"data__start_datetime": "then"}, "data.start_datetime: must be a date"),
        ({"data__start_datetime": "nat"}, "data.start_datetime: must be a date"),
        ({"data__start_datetime": "0500-01-01"}, "in the years 1678 to 2261"),
        ({"data__start_datetime": None}, "data: needs start_datetime and end_datetime"),
        ({"data__date_ranges": [["2000-01-01", "2000-02-01"]]}, "cannot be combined"),
        ({f"{ERA5}__history_len": 2}, "ERA5.history_len: 2 differs from data.history"),
        ({"data__source": {}}, "data.source: must have at least 1 entries"),
        ({"data__data_clamp": [1, 0]}, "must be [smallest, largest], got [1.0, 0.0]"),
        (
            {f"{ERA5}__level_coord": None, f"{ERA5}__levels": [1, 2]},
            "data.source.ERA5: vars_3D with levels needs level_coord",
        ),
        ({f"{ERA5}__temporal_mode": "last"}, "temporal_mode: must be one of 'exact'"),
        ({f"{ERA5}__calendar": "360_day"}, "ERA5.calendar: '360_day' is not available"),
        (
            {f"{ERA5}__dataset_type": "base"},
            "ERA5.dataset_type: dataset type 'base' is not available; there are: local",
        ),
        (
            {f"{ERA5}__dataset_type": "mine"},
            "custom_objects of the config can name an entry of your own",
        ),
        (
            {f"{ERA5}__variables__static__vars_2D": []},
            "variables.static: must name at least one variable",
        ),
        (
            {f"{ERA5}__variables__static__vars_2D": ["A", "A"]},
            "variables.static: names a variable twice: A",
        ),
        (
            {f"{ERA5}__variables__static__vars_2D": ["SP"]},
            "variables.static: SP is already in prognostic",
        ),
        (
            {f"{ERA5}__variables": {}},
            "data: no source has prognostic or diagnostic variables",
        ),
        ({"loss__use_spectral_loss": "often"}, "loss.use_spectral_loss: must be"),
        ({"trainer__type": "standard"}, "trainer.type: must be one of 'gen2' or"),
        ({"trainer__parallelism": None}, "trainer.parallelism: missing"),
        ({"trainer__parallelism__tensor": 0}, "tensor: must be at least 1, got 0"),
        ({"trainer__parallelism__data": "fsdp"}, "data: must be one of 'fsdp2', 'ddp'"),
        ({"trainer__parallelism__sp": 2}, "trainer.parallelism.sp: unknown key"),
        ({"trainer__ensemble_size": 0}, "trainer.ensemble_size: must be at least 1"),
        ({"trainer__grad_max_norm": "big"}, "at least 0, or 'dynamic', got 'big'"),
        ({"trainer__grad_max_norm": float("inf")}, "or 'dynamic', got inf"),
        ({"trainer__weight_decay": float("inf")}, "weight_decay: must be a finite"),
        ({"loss__variable_weights": {"T": [1.0, float("nan")]}}, "must be a finite"),
        ({"trainer__learning_rate": float("nan")}, "must be a finite number, got nan"),
        (
            {"data__source__ERA5__levels": [1.0, float("inf")]},
            "data.source.ERA5.levels.1: must be a finite number, got inf",
        ),
        ({"trainer__use_scheduler": True}, "trainer: use_scheduler is true, but there"),
        (
            {"trainer__scheduler": {"scheduler_type": "lambda"}},
            "trainer: there is a scheduler section, but use_scheduler is not given",
        ),
        (
            {"trainer__scheduler": {"scheduler_type": "plato"}},
            "trainer.scheduler.scheduler_type: must be one of 'linear-warmup-cosine'",
        ),
        (
            {
                "trainer__use_scheduler": True,
                "trainer__scheduler": {
                    "scheduler_type": "linear-warmup-cosine",
                    "warmup": 3,
                },
            },
            "trainer.scheduler.warmup: unknown key; the nearest known key is",
        ),
        ({"model": {"dim": 8}}, "model: needs type, the name of a model"),
        ({"save_loc": "$NOT_SET_AT_ALL/x"}, "save_loc: '$NOT_SET_AT_ALL/x' holds an"),
        ({"save_loc": "gs://bucket/run"}, "save_loc: 'gs://bucket/run' is an address"),
        ({"demo": {"out": "s3://bucket"}}, "demo.out: 's3://bucket' is an address"),
        ({"trainer__train_batch_size": 80}, "data: 52 samples in 2000-01-01 to"),
        ({"data__end_datetime": "2000-01-01"}, "data: no sample fits into"),
        ({"validation_data__end_datetime": "1999-01-01"}, "1999-01-01 ends before it"),
        ({"validation_data__timestep": "12h"}, "validation_data.timestep: 12h differs"),
        (
            {
                "trainer__skip_validation": True,
                "trainer__training_metric": "valid_loss",
            },
            "trainer.training_metric: 'valid_loss' needs a validation",
        ),
    ],
)
def test_rejections(changes, message):
    found = problems(**changes)
    assert len(found) == 1, found
    assert message in found[0], found


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"pbs": {"queue": "x"}}, "pbs"),
        ({"custom_models": []}, "custom_models"),
        ({"data__one_shot": True}, "data.one_shot"),
        ({"trainer__mode": "none"}, "trainer.mode"),
        ({"trainer__compile": True}, "trainer.compile"),
        ({"trainer__grad_max_norm": "dynamic"}, "trainer.grad_max_norm"),
    ],
)
def test_what_has_no_meaning_here_is_one_warning(changes, key):
    with pytest.warns(UserWarning, match=f"ignored here: {key} "):
        build_config(example(**changes))


def test_dynamic_norm_never_clips():
    with pytest.warns(UserWarning, match="never clips"):
        config = build_config(example(trainer__grad_max_norm="dynamic"))
    assert config.trainer.clip_norm == 0.0
    assert build_config(example(trainer__grad_max_norm=1)).trainer.clip_norm == 1.0


@pytest.mark.parametrize(
    ("value", "mode"), [(True, "full"), (False, "none"), ("selective", "selective")]
)
def test_activation_checkpoint(value, mode):
    config = build_config(example(trainer__activation_checkpoint=value))
    assert config.trainer.activation_checkpoint == mode


def test_training_metric_follows_skip_validation():
    trainer = build_config(example(trainer__skip_validation=True)).trainer
    assert trainer.training_metric == "train_loss"


def test_samples():
    assert num_samples(build_config(example()).data) == 13 * 4 + 1 - 1


def test_date_ranges_stand_for_start_and_end():
    ranges = [["2000-01-01", "2000-01-02"], ["2000-03-01", "2000-03-03"]]
    config = build_config(
        example(
            data__start_datetime=None,
            data__end_datetime=None,
            data__date_ranges=ranges,
            validation_data={
                "start_datetime": "2001-01-01",
                "end_datetime": "2001-02-01",
            },
        )
    )
    assert num_samples(config.data) == 4 + 8
    assert config.validation_data.date_ranges is None, config.validation_data
    assert config.validation_data.ranges == (("2001-01-01", "2001-02-01"),)


def test_a_wrong_inference_section_is_no_matter_of_training():
    """Only forecasts read it, in credit_jax as in CREDIT."""
    config = build_config(example(inference={"batch_forecast": {"length": "1d"}}))
    with pytest.raises(ConfigError, match=r"batch_forecast\.length: unknown"):
        _ = config.inference


def test_keys_that_credit_passes_over_are_a_warning():
    with pytest.warns(ConfigWarning, match=r"trainer\.xyzzy \(unknown key; CREDIT p"):
        build_config(example(trainer__xyzzy=1))
    with pytest.raises(ConfigError, match="the nearest known key is 'epochs'"):
        build_config(example(trainer__epoch=1))
    with pytest.raises(ConfigError, match=r"trainer\.parallelism\.xyzzy: unknown key"):
        build_config(example(trainer__parallelism__xyzzy=1))


def test_matmul_precision():
    assert precision_of(build_config(example()).trainer).matmul == "highest"
    narrow = {"trainer__amp": True, "trainer__fsdp2_mp_policy": {}}
    for given in ({}, narrow):
        config = build_config(example(trainer__matmul_precision="high", **given))
        assert precision_of(config.trainer).matmul == "high"
    said = " ".join(problems(trainer__matmul_precision="tf32"))
    assert "trainer.matmul_precision" in said
    assert "'highest', 'high' or 'default'" in said


def test_float8_needs_a_wide_format():
    narrow = {"trainer__amp": True, "trainer__fp8": True}
    assert "fp8 is true, but amp computes in float16" in " ".join(problems(**narrow))
    policy = {"param_dtype": "bfloat16"}
    config = build_config(example(**narrow, trainer__fsdp2_mp_policy=policy))
    assert precision_of(config.trainer).float8 == Float8()
    given = {"trainer__fp8": True, "trainer__float8": {"min_channels": 256}}
    config = build_config(example(**given))
    assert precision_of(config.trainer).float8 == Float8(256)
    given["trainer__float8"]["gradient_dtype"] = "float8_e5m2"
    config = build_config(example(**given))
    assert precision_of(config.trainer).float8 == Float8(256, "float8_e5m2")
    with pytest.warns(ConfigWarning, match="fp8 is not true"):
        config = build_config(example(trainer__float8={"min_channels": 256}))
    assert precision_of(config.trainer).float8 is None
