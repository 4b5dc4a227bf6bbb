"""Runs CREDIT's own gen2 rollout.

    python -m tests.reference.rollout_driver YAML [THREADS [ARITHMETIC ...]]

It runs as `credit rollout` does, except that files are written in this process instead
of by a pool of processes, which would take time to start. ARITHMETIC changes how the
model computes:

- float64: in double precision, in which its predictions are fed back, too;
- sigma: sigma of spectral norm and the quotients by it in double precision, rounded;
- operations: each operation in double precision, its result rounded to float32;
- native: convolutions of torch itself instead of oneDNN's.
"""

import sys
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from credit_torch_bridge.compare.jax_side import import_torchvision
from tests.reference.bridgescaler import import_bridgescaler


def main(config: str, threads: str = "1", *arithmetic: str) -> None:
    """Rolls out every start date of the config."""
    torch.set_num_threads(int(threads))
    import_torchvision()
    import_bridgescaler()
    from credit.applications import rollout_gen2

    no_pool = SimpleNamespace(Pool=lambda _: _NoPool())
    rollout_gen2.mp = SimpleNamespace(get_context=lambda _: no_pool)
    load = rollout_gen2.load_model_for_inference
    rollout_gen2.load_model_for_inference = lambda *args: _changed(
        load(*args), arithmetic
    )
    sys.argv = ["rollout_gen2", "-c", config]
    rollout_gen2.main()


def _changed(model, arithmetic):
    """The model with another arithmetic."""
    torch.backends.mkldnn.enabled = "native" not in arithmetic
    if "sigma" in arithmetic:
        _divide_in_double(model)
    if "operations" in arithmetic:
        return _Rounded(model)
    return _Double(model) if "float64" in arithmetic else model


class _Double(torch.nn.Module):
    """A model in double precision that casts its inputs."""

    def __init__(self, model):
        super().__init__()
        self.model = model.double()

    def forward(self, x):
        return self.model(x.double())


class _Rounded(torch.nn.Module):
    """A model of which each operation is computed in double precision and rounded."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        with _RoundedOperations():
            return self.model(x)


class _RoundedOperations(TorchDispatchMode):
    """Computes in double precision whatever neither is a view nor writes in place."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.is_view or func._schema.is_mutable:
            return func(*args, **kwargs)
        wide = [
            tree_map(lambda x: _cast(x, torch.float32, torch.float64), own)
            for own in (args, kwargs)
        ]
        made = func(*wide[0], **wide[1])
        return tree_map(lambda x: _cast(x, torch.float64, torch.float32), made)


def _cast(x, old, new):
    return x.to(new) if isinstance(x, torch.Tensor) and x.dtype == old else x


def _divide_in_double(model):
    """Divides all weights by sigma once, in double precision."""
    model.double()
    for module in model.modules():
        if hasattr(module, "weight_orig"):
            torch.nn.utils.remove_spectral_norm(module)
    model.float()


class _NoPool:
    """A stand-in for a process pool that runs jobs immediately."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def apply_async(self, function, args):
        """Runs a job immediately."""
        function(*args)
        return SimpleNamespace(get=lambda: None)

    def close(self):
        pass

    def join(self):
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
