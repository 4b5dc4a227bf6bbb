"""A row for each loss: its section, the same in CREDIT or numpy, and bounds."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import xarray as xr
from jax.sharding import PartitionSpec

from credit_jax.config.loss import LossConfig
from credit_jax.losses import build_loss, initial_parameters, value_and_parts
from credit_jax.losses.base import pointwise_losses
from credit_jax.named_fields import ChannelLayout, latitude_weights, target_variances
from tests.losses.toys import TOYS
from tests.reference.bridgescaler import import_bridgescaler
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, field_spec, run_on_mesh

LON = 12
U, T = "S/prognostic/3d/U", "S/prognostic/3d/T"
SP, TP, COMPUTED = "S/prognostic/2d/SP", "S/diagnostic/2d/TP", "S/computed/2d/Z"
CHANNELS = {U: 3, T: 3, SP: 1, TP: 1}
# Scale and offset of physical units.
UNITS = {U: (6.0, 2.0), T: (8.0, 250.0), SP: (900.0, 1e5), TP: (1e-3, 2e-3)}
VARIANCES = {U: 36.0, T: 64.0, SP: 8.1e5}
LOGS = np.array([0.7, 2.5, 12.0, -9.0], np.float32)


def rows_of(lat: int) -> np.ndarray:
    return np.linspace(85.0, -70.0, lat)


def with_poles(lat: int) -> np.ndarray:
    return np.linspace(90.0, -90.0, lat)


def fields(lat: int, members: int) -> list[np.ndarray]:
    """Prediction and target: (members * 2 or 2, channel, time, lat, lon)."""
    shape = (sum(CHANNELS.values()), 1, lat, LON)
    return [2 * draw((2 * members, *shape), seed=2), draw((2, *shape), seed=1)]


def close(lat: int, members: int) -> list[np.ndarray]:
    """Fields whose errors are half of the spread."""
    prediction, target = fields(lat, members)
    return [target + 0.25 * prediction, target]


def spiked(lat: int, members: int) -> list[np.ndarray]:
    """Fields with power at all wavenumbers: near zero its logarithm is steep."""
    arrays = fields(lat, members)
    for x in arrays:
        x[..., 0] += 20.0
    return arrays


def correlated(lat: int, members: int) -> list[np.ndarray]:
    """Fields of two times whose errors are correlated between channels."""
    target, noise = (draw((2, 8, 2, lat, LON), seed=seed) for seed in (1, 2))
    return [target + noise + 0.5 * noise[:, :1] + 0.2, target]


def equal_members(equal: int) -> Callable[..., list[np.ndarray]]:
    """Some members are the same, as of noise without effect; one is the target."""

    def made(lat: int, members: int) -> list[np.ndarray]:
        prediction, target = fields(lat, members)
        each = prediction.reshape(len(target), members, *target.shape[1:])
        each[:, -equal:] = each[:, -1:]
        each[:, 0, 0] = target[:, 0]
        return [prediction, target]

    return made


@dataclass(frozen=True)
class Row:
    """A loss.

    `theirs(row, prediction, target, folder)` has values by the names that `ours` has.
    """

    section: Mapping[str, Any]
    theirs: Callable[..., Mapping[str, Any]]
    bounds: tuple[float, float] = (1e-6, 1e-5)  # Of values, of gradients.
    fields: Callable[[int, int], list[np.ndarray]] = fields
    members: int = 1
    learned: np.ndarray | None = None
    latitude: Callable[[int], np.ndarray] = rows_of
    settings: Mapping[str, Any] = field(default_factory=dict)  # Of `build_loss`.


def built(row: Row, lat: int, variances: Any = VARIANCES) -> Any:
    return build_loss(
        LossConfig(**row.section),
        CHANNELS,
        latitude=row.latitude(lat),
        variances=variances,
        **row.settings,
    )


def named(x: Any, stack: Any = lambda x: x[0]) -> dict[str, dict[str, Any]]:
    """Fields in physical units, and one that a postblock would compute."""
    places = ChannelLayout.of(CHANNELS).slices
    made = {k: x[:, own] * UNITS[k][0] + UNITS[k][1] for k, own in places.items()}
    return {"S": {**made, COMPUTED: made[SP] ** 2 / 1e8}}


def ours(row: Row, arrays: Any, mesh: Any = None, variances: Any = VARIANCES) -> Any:
    """Returns the loss, its parts, and gradients by prediction and parameters."""
    lat = arrays[0].shape[-2]
    loss = built(row, lat, variances)
    context = field_context(lat, mesh, num_members=row.members)
    names = initial_parameters(loss)
    learned = {} if row.learned is None else dict.fromkeys(names, row.learned)

    def local(prediction: Any, target: Any) -> Any:
        def of(prediction: Any, learned: Any) -> Any:
            tree = {"y_pred": prediction, "y": target}
            if LossConfig(**row.section).is_base:
                pairs = zip(("y_processed", "y_target_processed"), tree.values())  # noqa: B905
                tree |= {key: named(x) for key, x in pairs}
            context_of_step = replace(context, loss_parameters=learned)
            return value_and_parts(loss, tree, context_of_step)

        both = jax.value_and_grad(of, argnums=(0, 1), has_aux=True)
        (value, parts), (gradient, own) = both(prediction, learned)
        own = {f"gradient by {name}": x for name, x in own.items()}
        return {"loss": value, **parts, **own}, gradient

    if mesh is None:
        found, gradient = jax.jit(local)(*arrays)
    else:
        specs = (PartitionSpec(), field_spec(mesh))
        found, gradient = run_on_mesh(local, mesh, *arrays, out_specs=specs)
    assert not gradient[..., lat:, :].any(), "padding has a gradient"
    initial = {f"initial {name}": x for name, x in names.items()}
    return {**found, **initial, "gradient": np.asarray(gradient)[..., :lat, :]}


def latitude_file(row: Row, lat: int, folder: Any) -> str:
    coords = {"latitude": row.latitude(lat), "longitude": np.arange(float(LON))}
    xr.Dataset(coords=coords).to_netcdf(folder / "latitude.nc")
    return str(folder / "latitude.nc")


def value_and_gradient(criterion: Any, prediction: Any, target: Any) -> dict[str, Any]:
    """Calls a criterion of CREDIT, (target, prediction) -> loss, on torch tensors."""
    import torch

    own = torch.tensor(prediction, requires_grad=True)
    value = criterion(torch.tensor(target), own).mean()
    value.backward()
    return {"loss": value.item(), "gradient": own.grad.numpy()}


def trainer(row: Row, prediction: Any, target: Any, folder: Any) -> dict[str, Any]:
    """CREDIT's `load_loss`, as its trainer calls it."""
    from credit.losses import load_loss

    unused = ("latitude_weights", "variable_weights", "spectral_loss")
    path = latitude_file(row, target.shape[-2], folder)
    loss = {**{f"use_{name}": False for name in unused}, "latitude_weights": path}
    data = {"variables": ["U", "T"], "surface_variables": ["SP"]}
    data["diagnostic_variables"] = ["TP"]
    conf = {"loss": loss | row.section, "data": data, "model": {"levels": 3}}
    criterion = load_loss(conf, **row.settings)
    return value_and_gradient(
        lambda t, p: criterion(t.flatten(1, 2), p.flatten(1, 2)), prediction, target
    )


def power_class(row: Row, prediction: Any, target: Any, folder: Any) -> Any:
    """CREDIT cannot train with this class, but it can be called."""
    module = importlib.import_module("credit.losses.gen_1.power")
    loss = module.PSDLoss(**row.section["training_loss_parameters"])
    return value_and_gradient(
        lambda t, p: loss(t.flatten(1, 2), p.flatten(1, 2)), prediction, target
    )


def covariance_class(row: Row, prediction: Any, target: Any, folder: Any) -> Any:
    module = importlib.import_module("credit.losses.gen_1.covariance")
    options = row.section["training_loss_parameters"]
    criterion = module.CovarianceWeightedMSELoss(**options)
    return value_and_gradient(criterion, prediction, target)


def base(row: Row, prediction: Any, target: Any, folder: Any) -> dict[str, Any]:
    """CREDIT's BaseLoss on the same named fields."""
    import torch
    from credit.losses.base import BaseLoss

    files = {"scaler_path": str(folder.parent / "scaler.json")}
    files["latitude_weights"] = latitude_file(row, target.shape[-2], folder)
    schema = SimpleNamespace(target_layout=[{"var_key": key} for key in CHANNELS])
    args = files | row.section["args"]
    criterion = BaseLoss(**args, channel_schema=schema, **row.settings)
    more = {}
    logs = getattr(criterion, "log_variance", None)
    if logs is not None:
        more["initial log_variance"] = logs.detach().numpy().copy()
        if row.learned is not None:
            logs.data = torch.tensor(row.learned)

    def of_fields(target: Any, prediction: Any) -> Any:
        tree = {"y_processed": named(prediction), "y_target_processed": named(target)}
        return criterion(tree)

    found = value_and_gradient(of_fields, prediction, target) | more
    if logs is None:
        return found
    scores = criterion.last_var_losses
    found |= {f"loss_var/{key}": score for key, score in scores.items()}
    if row.learned is not None:
        found["gradient by log_variance"] = logs.grad.numpy()
    return found


def write_scalers(folder: Any) -> Any:
    """Scalers of U, T (standard) and SP (quantile); that of TP has no variance."""
    import torch

    import_bridgescaler()
    from bridgescaler import distributed_tensor, save_scaler_dict

    kinds = ("Standard", "Standard", "Quantile", "MinMax")
    scalers = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for (key, levels), kind in zip(CHANNELS.items(), kinds, strict=True):
            scale, offset = UNITS[key]
            values = draw((4, levels, 1, 8, LON), seed=9) * scale + offset
            cls = getattr(distributed_tensor, f"D{kind}ScalerTensor")
            scalers[key] = cls(channels_last=False)
            scalers[key].fit(torch.tensor(values, dtype=torch.float32))
    save_scaler_dict({"target": {"S": scalers}}, str(folder / "scaler.json"))
    return target_variances(folder / "scaler.json")


def numpys(formula: Callable[..., Any]) -> Callable[..., Mapping[str, Any]]:
    """A reference by a formula of prediction, target and weights of rows, float64."""

    def reference(row: Row, prediction: Any, target: Any, folder: Any) -> Any:
        weights = latitude_weights(row.latitude(target.shape[-2])).astype(np.float64)
        arrays = (x.astype(np.float64) for x in (prediction, target))
        return {"loss": formula(*arrays, weights[:, None])}

    return reference


def weighted(factors: Any, power: int = 2) -> Callable[..., Mapping[str, Any]]:
    """The mean of powers of errors with factors by channel."""
    factors = np.asarray(factors).reshape(1, -1, 1, 1, 1)
    return numpys(lambda p, t, _: np.mean(np.abs(p - t) ** power * factors))


def base_by_level(prediction: Any, target: Any, weights: Any) -> Any:
    """Level weights count within a variable; a computed variable has none."""
    both = [named(x)["S"] for x in (prediction, target)]
    errors = {key: (both[0][key] - both[1][key]) ** 2 * weights for key in both[0]}
    means = {key: error.mean(axis=(0, 2, 3, 4)) for key, error in errors.items()}
    for key in (U, T):
        means[key] = means[key] * LEVEL_FACTORS[:3]
    return np.mean([mean.mean() for mean in means.values()])


def plain(name: str, **parameters: Any) -> dict[str, Any]:
    return {"training_loss": name, "training_loss_parameters": parameters}


def variables(**args: Any) -> dict[str, Any]:
    return {"type": "base", "args": args}


ELEMENTWISE = [name for name in pointwise_losses() if name != "ring-crps"]
WEIGHTS = {"U": [0.5, 1.0, 2.0], "T": [1.0, 0.25, 3.0], "SP": 4.0, "TP": 0.125}
BY_VARIABLE = {"use_variable_weights": True, "variable_weights": WEIGHTS}
BY_ROW = {"use_latitude_weights": True}
VALIDATION = {"validation": True}
KCRPS, FAIR = plain("KCRPS"), plain("almost-fair-crps")
FAIR_95 = plain("almost-fair-crps", alpha=0.95)
TERMS = {"training_loss": "mse", "spectral_lambda_reg": 0.3}
TERMS |= {"spectral_wavenum_init": 2}
BOTH = TERMS | BY_VARIABLE | {"use_power_loss": True, "use_spectral_loss": True}
LEVELS = (100.0, 500.0, 850.0)
BY_LEVEL = {"level_weights": {"slope": 1e-3, "minimum": 0.2}}
LEVEL_FACTORS = np.array([0.2, 0.5, 0.85, 0.2, 0.5, 0.85, 1.0, 1.0])
OF_LEVELS = {"levels": {U: LEVELS, T: LEVELS}}
OF_VARIABLES = np.concatenate([np.atleast_1d(w) for w in WEIGHTS.values()])
# Inverse variances with mean 1 over U and T.
TENDENCIES = {"tendencies": {U: [0.5, 1.0, 4.0], T: [2.0, 2.0, 8.0]}}
INVERSE = np.array([2.0, 1.0, 0.25, 0.5, 0.5, 0.125])
INVERSE = np.concatenate([INVERSE / INVERSE.mean(), [1.0, 1.0]])
LEARNABLE = variables(
    var_weighting="learnable",
    include_computed_diagnostics=False,
    variable_weights={SP: 3.0},
    **BY_ROW,
)
BASE = {
    "inverse variance": {},
    "not normalized": {"normalize_weights": False},
    "multipliers": {"variable_weights": {SP: 3.0}},
    "manual": {"var_weighting": "manual", "variable_weights": {T: 2.0, TP: 0.5}},
    "none, latitude": {"var_weighting": "none", **BY_ROW},
    "huber": {"training_loss": "huber", "base_loss_parameters": {"delta": 0.7}},
    "overrides": {
        "base_loss_overrides": {
            SP: {"loss": "mae", "parameters": {}},
            TP: {"loss": "huber", "parameters": {"delta": 1e-3}},
        },
        **BY_ROW,
    },
    "no computed": {"include_computed_diagnostics": False},
    "ring-crps": {"training_loss": "ring-crps"},
    # These count for nothing, as in CREDIT: a postblock might compute them.
    "weight of none": {"variable_weights": {f"{T}x": 2.0}},
    "override of none": {"base_loss_overrides": {f"{T}x": {"loss": "mae"}}},
}
# The gradient of the logarithm of a power near zero is large.
STEEP = (1e-6, 1e-4)
CREDIT = {
    **{name: Row(plain(name), trainer) for name in ELEMENTWISE},
    "huber, delta": Row(plain("huber", delta=0.4), trainer),
    "rows": Row(plain("mse") | BY_ROW, trainer),
    "variables": Row(plain("mse") | BY_VARIABLE, trainer),
    "rows, variables": Row(plain("mae") | BY_ROW | BY_VARIABLE, trainer),
    "spectral": Row(plain("spectral", wavenum_init=2), trainer, STEEP),
    "spectral term": Row(TERMS | BY_ROW | {"use_spectral_loss": True}, trainer, STEEP),
    "power term": Row(
        TERMS | BY_ROW | {"use_power_loss": True}, trainer, fields=spiked
    ),
    "both terms": Row(BOTH, trainer, fields=spiked),
    "no weights, no terms": Row(TERMS | {"use_power_loss": True}, trainer),
    "power": Row(plain("power", wavenum_init=2), power_class, fields=spiked),
    "validation of rows": Row(plain("mse") | BY_ROW, trainer, settings=VALIDATION),
    "validation": Row(
        {"validation_loss": "huber", "validation_loss_parameters": {"delta": 2.0}},
        trainer,
        settings=VALIDATION,
    ),
    **{
        f"covmse, {options}": Row(
            plain("covmse", **options), covariance_class, (1e-5, 1e-4), correlated
        )
        for options in (
            {},
            {"batch_normalize": True},
            {"batch_normalize": True, "off_diagonal_scale": 0.5},
        )
    },
    **{
        name: Row(section, trainer, members=3)
        for name, section in {
            "KCRPS": KCRPS,
            "KCRPS, biased": plain("KCRPS", biased=True),
            "KCRPS, rows": KCRPS | BY_ROW,
            "almost fair": FAIR,
            "almost fair, 0.95": FAIR_95,
        }.items()
    },
    # With weights CREDIT's validation uses it, too, whatever `validation_loss` is.
    "validation of KCRPS, rows": Row(
        KCRPS | BY_ROW | {"validation_loss": "mse"},
        trainer,
        members=3,
        settings=VALIDATION,
    ),
    **{
        f"{name}, {equal} equal": Row(
            section, trainer, (1e-6, 1e-6), equal_members(equal), 3
        )
        for name, section in (("almost fair", FAIR), ("almost fair, 0.95", FAIR_95))
        for equal in (2, 3)
    },
    **{
        f"base, {name}": Row(variables(**args), base, (1e-5, 1e-4), close)
        for name, args in BASE.items()
    },
    **{
        f"base, validation by {own}": Row(
            variables(validation_loss=own, **BY_ROW),
            base,
            (1e-5, 1e-4),
            close,
            settings=VALIDATION,
        )
        for own in (None, "mae")
    },
    # CREDIT's validation has a separate loss, whose parameters are never trained.
    "learnable, initial": Row(LEARNABLE, base, (1e-6, 1e-5), close),
    "learnable": Row(LEARNABLE, base, (1e-6, 1e-5), close, learned=LOGS),
}
NUMPY = {
    **{
        name: Row(plain(name, **args) | BY_ROW, numpys(formula), members=members)
        for name, (_, args, members, formula) in TOYS.items()
    },
    "levels": Row(BY_LEVEL, weighted(LEVEL_FACTORS), settings=OF_LEVELS),
    "levels, variables": Row(
        BY_LEVEL | BY_VARIABLE,
        weighted(LEVEL_FACTORS * OF_VARIABLES),
        settings=OF_LEVELS,
    ),
    "levels, mae": Row(
        BY_LEVEL | {"type": "mae"}, weighted(LEVEL_FACTORS, 1), settings=OF_LEVELS
    ),
    "base, levels": Row(
        variables(var_weighting="none", **BY_ROW) | BY_LEVEL,
        numpys(base_by_level),
        fields=close,
        settings=OF_LEVELS,
    ),
    "tendencies": Row(
        {"tendency_weights": "t.json"}, weighted(INVERSE), settings=TENDENCIES
    ),
    "tendencies, levels": Row(
        {"tendency_weights": "t.json", **BY_LEVEL},
        weighted(INVERSE * LEVEL_FACTORS),
        settings=TENDENCIES | OF_LEVELS,
    ),
    # The mean of the losses of the members.
    "mse of members": Row(
        plain("mse"),
        numpys(lambda p, t, _: np.square(p - np.repeat(t, 3, axis=0)).mean()),
        members=3,
    ),
    "ring of one rank": Row(
        plain("ring-crps"), numpys(lambda p, t, _: np.abs(p - t).mean())
    ),
}
ROWS = CREDIT | NUMPY
ON_MESHES = {
    name: ROWS[name]
    for name in (
        *TOYS,
        *("rows, variables", "levels, variables", "both terms", "KCRPS"),
        *("almost fair, 0.95", "base, overrides", "base, levels", "learnable"),
    )
}
ON_MESHES["covmse"] = CREDIT[[name for name in CREDIT if "covmse" in name][-1]]
ON_MESHES["both terms"] = replace(ROWS["both terms"], section=BOTH | BY_ROW)
for _name in ("spherical", "amse"):
    section = plain(_name, truncation=4, exponent=0.5) | BY_VARIABLE
    ON_MESHES[_name] = Row(section, weighted(1.0), latitude=with_poles)
