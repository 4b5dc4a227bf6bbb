import pytest

from credit_jax.config import ConfigError, build_config
from credit_jax.config.base import ConfigWarning
from credit_jax.config.data import num_samples
from credit_jax.parallel.params.precision import Float8
from credit_jax.plan.run import precision_of
from tests.config.example import example


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


def test_dynamic_norm_never_clips():
    with pytest.warns(ConfigWarning):
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


def test_matmul_precision():
    assert precision_of(build_config(example()).trainer).matmul == "highest"
    narrow = {"trainer__amp": True, "trainer__fsdp2_mp_policy": {}}
    for given in ({}, narrow):
        config = build_config(example(trainer__matmul_precision="high", **given))
        assert precision_of(config.trainer).matmul == "high"


def test_float8_needs_a_wide_format():
    narrow = {"trainer__amp": True, "trainer__fp8": True}
    policy = {"param_dtype": "bfloat16"}
    config = build_config(example(**narrow, trainer__fsdp2_mp_policy=policy))
    assert precision_of(config.trainer).float8 == Float8()
    given = {"trainer__fp8": True, "trainer__float8": {"min_channels": 256}}
    config = build_config(example(**given))
    assert precision_of(config.trainer).float8 == Float8(256)
    given["trainer__float8"]["gradient_dtype"] = "float8_e5m2"
    config = build_config(example(**given))
    assert precision_of(config.trainer).float8 == Float8(256, "float8_e5m2")
    with pytest.warns(ConfigWarning):
        config = build_config(example(trainer__float8={"min_channels": 256}))
    assert precision_of(config.trainer).float8 is None
