"""Communication volume of a training step."""

import json

import jax
import pytest

from benchmarks.compiled_step import SMALL_MODEL
from benchmarks.scale.comm_volume import (
    EXCHANGE,
    FSDP,
    SUMS,
    TENSOR,
    least_volume,
    main,
    purpose,
)
from benchmarks.scale.hlo import Collective
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.axes import MeshAxes
from credit_jax.parallel.rows.reshard import HALO


def test_a_purpose_for_everything_that_moves():
    mesh = {"dp_shard": 2, "tp": 2, "domain": 2}

    def of(kind, members, name=""):
        return purpose(Collective(kind, 4, members, 1, name), mesh)

    assert of("all-gather", (0, 4)) == FSDP
    assert of("all-reduce", (0, 2)) == TENSOR
    assert of("all-reduce", (0, 1)) == SUMS
    assert of("all-gather", (0, 1), "jit(step)/decoder/norm/all_gather") == SUMS
    parameters = "jit(step)/(jvp(decoder)/norm/all_gather:jvp(parameters)/all_gather)"
    assert of("all-gather", (0, 1), parameters) == FSDP
    assert of("collective-permute", (0, 1), "jit(step)/halo/ppermute") == HALO
    assert of("all-to-all", (0, 1), "jit(step)/windows/all_to_all") == EXCHANGE
    with pytest.raises(ValueError, match="all-gather over"):
        of("all-gather", (0, 1), "an activation")


def test_least_volume_of_one_device_is_nothing():
    model_def = build(SMALL_MODEL)
    assert not any(least_volume(model_def, MeshAxes(), 8).values())
    replicas = MeshAxes.from_degrees({"dp_replicate": 4})
    least = least_volume(model_def, replicas, 8)
    assert least[SUMS] == pytest.approx(2 * 3 / 4 * 4 * model_def.num_parameters)
    assert not least[FSDP]


@pytest.fixture
def named():
    """Programs whose operations have their named scopes, as outside of tests."""
    name = "jax_include_full_tracebacks_in_locations"
    before = getattr(jax.config, name)
    jax.config.update(name, True)
    jax.clear_caches()
    yield
    jax.config.update(name, before)


@pytest.mark.slow
@pytest.mark.usefixtures("named")
def test_volume_of_one_mesh(tmp_path):
    options = ["--model", "small", "--out", str(tmp_path)]
    volume = main(["--meshes", "dp2xtp2xdomain2", *options])
    (run,) = json.loads(volume.with_suffix(".json").read_text())["runs"]
    print("sent", run["sent"], "least", run["least"])
    ratio = {name: run["sent"][name] / run["least"][name] for name in run["least"]}
    assert 1.0 <= ratio[HALO] < 1.2, "rows beyond the convolutions' reach are moved"
    assert 1.0 <= ratio[TENSOR] < 1.2, "more is summed over tp than blocks need"
    assert 0.0 < ratio[FSDP] <= 1.0, "parameters are gathered more than twice"
    assert ratio[EXCHANGE] == 1.0, "long attention moves more than its two exchanges"
