"""Runs CREDIT's own gen2 rollout.

    python -m tests.reference.rollout_driver YAML [THREADS [DTYPE]]

It runs as `credit rollout` does, except that files are written in this process instead
of by a pool of processes, which would take time to start. With DTYPE float64 the model
computes in double precision, and its predictions are fed back in double precision.
"""

import sys
from types import SimpleNamespace

import torch

from credit_torch_bridge.compare.credit_import import import_torchvision


def main(config: str, threads: str = "1", dtype: str = "float32") -> None:
    """Rolls out every start date of the config."""
    torch.set_num_threads(int(threads))
    import_torchvision()
    from credit.applications import rollout_gen2

    no_pool = SimpleNamespace(Pool=lambda _: _NoPool())
    rollout_gen2.mp = SimpleNamespace(get_context=lambda _: no_pool)
    if dtype == "float64":
        load = rollout_gen2.load_model_for_inference
        rollout_gen2.load_model_for_inference = lambda *args: _Double(load(*args))
    sys.argv = ["rollout_gen2", "-c", config]
    rollout_gen2.main()


class _Double(torch.nn.Module):
    """A model in double precision that casts its inputs."""

    def __init__(self, model):
        super().__init__()
        self.model = model.double()

    def forward(self, x):
        return self.model(x.double())


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
