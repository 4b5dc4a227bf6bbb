"""Makes the files of values that a GPU's are compared with, on a CPU.

    python -m benchmarks.gpu.reference [models] [training] [--out FOLDER]

`models.npz` are values of serial CREDIT, `training.json` losses of credit_jax. The
committed files stay as they are until a model or a draw changes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.gpu import draws, models, training
from benchmarks.recipe import recipe
from benchmarks.speed.cases import make_case
from credit_torch_bridge.compare.credit_side import (
    build_credit,
    call_network,
    network_of,
    run_credit,
    share_edges,
)

# Forward passes in training mode after which spectral norm and statistics are settled.
_SETTLING = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the files."""
    options = _parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if "models" in options.files:
        values = {family: credit_values(family) for family in options.families}
        models.write_values(options.out / models.VALUES.name, values)
    if "training" in options.files:
        ways = (models.KERNELS, models.PLAIN)
        losses = {
            model: {way: training.losses(model, way, steps) for way in ways}
            for model, steps in training.STEPS.items()
            if model in options.trained
        }
        data = {"recipe": recipe(training.STEPS), "losses": losses}
        text = json.dumps(data, indent=1)
        (options.out / training.LOSSES.name).write_text(text + "\n")
    return 0


def credit_values(family: str) -> dict[str, np.ndarray]:
    """Returns sketches of CREDIT's prediction and gradients, and its vectors.

    Args:
        family: one of `models.FAMILIES`.
    """
    torch.set_num_threads(1)
    case = make_case("tiny", family)
    inputs = draws.inputs_of(case.model_def)
    with mock.patch.object(torch, "randn", torch.ones):
        drawn = draws.drawn_state(case.model_def)
        model = build_credit(case.block, drawn)
        share_edges(model, case.block)
        _settle(model, inputs)
        parameters = {name for name, _ in model.named_parameters()}
        state = {
            f"state {name}": tensor.numpy().copy()
            for name, tensor in model.state_dict().items()
            if name not in parameters and not np.array_equal(tensor, drawn[name])
        }
        outputs = run_credit(model, inputs, [])
    sketches = models.sketches(outputs.prediction, outputs.gradients)
    return {**state, **sketches}


def _settle(model: torch.nn.Module, inputs: dict[str, np.ndarray]) -> None:
    """Runs forward passes in training mode, without dropout."""
    network: Any = network_of(model)
    network.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.eval()
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.no_grad():
        for _ in range(_SETTLING):
            call_network(network, tensors)
    model.eval()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.reference")
    add = parser.add_argument
    add("files", nargs="*", default=["models", "training"], metavar="FILE")
    add("--families", nargs="+", choices=models.FAMILIES, default=models.FAMILIES)
    add("--trained", nargs="+", choices=training.STEPS, default=[*training.STEPS])
    add("--out", type=Path, default=models.VALUES.parent, help="folder of the files")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
