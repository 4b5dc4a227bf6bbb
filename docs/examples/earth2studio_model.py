"""A run or a package of credit_jax as a prognostic model of Earth2Studio.

    model = CreditJax("RUN")
    earth2studio.run.deterministic(["2018-06-01"], 40, model, ARCO(), ZarrBackend())

It is what `earth2studio.models.px.base.PrognosticModel` and `PrognosticMixin` say;
nothing of Earth2Studio is imported. Its input has the prognostic variables, its output
the diagnostic ones, too, which are NaN at the start. credit_jax reads the forcing.
"""

from collections import OrderedDict

import jax.numpy as jnp
import numpy as np
import torch

import credit_jax
from credit_jax.plan.forecast import levels_of

# Names of Earth2Studio's lexicon, by those of CREDIT's files and of ERA5.
NAMES = {name: name.lower() for name in ("T", "U", "V", "Q", "Z", "Qtot", "SP", "MSL")}
NAMES |= {"temperature": "t", "u_component_of_wind": "u", "v_component_of_wind": "v"}
NAMES |= {"specific_humidity": "q", "specific_total_water": "qtot", "geopotential": "z"}
NAMES |= {"surface_pressure": "sp", "mean_sea_level_pressure": "msl", "VAR_2T": "t2m"}
NAMES |= {"2m_temperature": "t2m", "VAR_10U": "u10m", "VAR_10V": "v10m", "SSTK": "sst"}
NAMES |= {"10m_u_component_of_wind": "u10m", "10m_v_component_of_wind": "v10m"}
NAMES |= {"sea_surface_temperature": "sst", "total_precipitation": "tp06"}


class CreditJax:
    """A prognostic model; `options` are those of `credit_jax.open_forecaster`.

    Levels are named as `level` says: "t500"; as CAMulator's by "{number}k": "t0k".
    """

    def __init__(self, source, *, level="{level:g}", **options):
        self.states = states = credit_jax.open_forecaster(source, **options).states
        self.device, self.step = "cpu", states.timestep.astype("timedelta64[ns]")
        self.grid = OrderedDict(lat=states.latitude, lon=states.longitude)
        if states.reader.pipeline.grid is not None or states.latitude.ndim > 1:
            raise ValueError(f"{source}: expected one grid of latitudes and longitudes")
        listed, names = levels_of(states.config, states.schema), {}
        for group in (*states.schema.target, *states.reader.data.schema.input):
            name, values = group.variable, listed.get(group.source) or ()
            if len(values) != group.n_levels:
                values = range(group.n_levels)
            texts = [level.format(level=v, number=i) for i, v in enumerate(values)]
            texts = texts if "/3d/" in group.var_key else [""]
            names[group.var_key] = [NAMES.get(name, name) + text for text in texts]
        self.inputs = [name for key in states.prognostic for name in names[key]]
        self.keys = list(states.schema.target_slices())
        self.outputs = [name for key in self.keys for name in names[key]]
        if twice := {name for name in self.outputs if self.outputs.count(name) > 1}:
            raise ValueError(f"level: several channels are called {sorted(twice)}")
        self.prognostic = [self.outputs.index(name) for name in self.inputs]

    def front_hook(self, x, coords):
        """Replace this to change the state before each step."""
        return x, coords

    rear_hook = front_hook  # the same for the fields after each step

    def to(self, device):
        """Where tensors are returned; the model stays on the devices of its mesh."""
        self.device = device
        return self

    def input_coords(self):
        lead = np.arange(1 - self.states.history_len, 1) * self.step
        coords = OrderedDict(batch=np.empty(0), time=np.empty(0), lead_time=lead)
        return OrderedDict(coords, variable=np.array(self.inputs), **self.grid)

    def output_coords(self, input_coords):
        own, last = self.input_coords(), input_coords["lead_time"][-1:]
        if list(input_coords)[-5:] != list(own)[1:]:
            raise ValueError(f"the dims are {list(input_coords)}, expected {list(own)}")
        relative = input_coords | {"lead_time": input_coords["lead_time"] - last}
        for name in list(own)[2:]:
            if not np.array_equal(relative[name], own[name]):
                raise ValueError(f"{name} is {relative[name]}, expected {own[name]}")
        changed = {"lead_time": last + self.step, "variable": np.array(self.outputs)}
        return OrderedDict(input_coords | changed)

    def __call__(self, x, coords):
        return next(self._rollout(x, coords)), self.output_coords(coords)

    def create_iterator(self, x, coords):
        after, x = self.output_coords(coords), x.to(self.device, torch.float32)
        shape = (*x.shape[:-4], 1, len(self.outputs), *x.shape[-2:])
        y = torch.full(shape, torch.nan, device=self.device)
        y[..., self.prognostic, :, :] = x[..., -1:, :, :, :]
        yield y, OrderedDict(after, lead_time=coords["lead_time"][-1:])
        steps, expected = None, x
        while True:
            x, coords = self.front_hook(x, coords)
            # Where hooks changed no bit of the state, the rollout goes on.
            bits = (own.contiguous().view(torch.int32) for own in (x, expected))
            if steps is None or not torch.equal(*bits):
                steps = self._rollout(x, coords)
            y, after = next(steps), self.output_coords(coords)
            expected = self._following(x, y)
            y, after = self.rear_hook(y, after)
            x, lead = self._following(x, y), [*coords["lead_time"], *after["lead_time"]]
            coords = OrderedDict(coords, lead_time=np.array(lead[1:]))
            yield y, after

    def _following(self, x, y):
        return torch.cat([x[..., 1:, :, :, :], y[..., self.prognostic, :, :]], -4)

    def _rollout(self, x, coords):
        dates = np.broadcast_to(coords["time"] + coords["lead_time"][-1], x.shape[:-4])
        array = x.detach().to("cpu", torch.float32).numpy().reshape(-1, *x.shape[-4:])
        ends = np.cumsum([*self.states.prognostic.values()])[:-1]
        parts = np.split(array.swapaxes(1, 2), ends, axis=1)
        state = dict(zip(self.states.prognostic, parts, strict=True))
        for fields in self.states.forecast(state, dates.ravel()):
            y = np.array(jnp.concatenate([fields[key] for key in self.keys], axis=1))
            y = torch.from_numpy(y.reshape(*x.shape[:-4], 1, *y.shape[1:]))
            yield y.to(self.device)
