"""The position of a run in its epochs: the part of a checkpoint without arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True)
class PlateauState:
    """The state of the schedule `plateau`, as of torch's ReduceLROnPlateau."""

    epochs: int = 0  # metrics seen
    best: float | None = None  # the best of them; None before the first
    bad_epochs: int = 0  # epochs since the best one, or since the rate was reduced
    cooldown: int = 0  # number of coming epochs that do not count as bad


@dataclass(frozen=True)
class Progress:
    """The position of a run and its best result so far."""

    epoch: int = 0  # the epoch to continue with
    batches: int = 0  # micro-batches of that epoch already trained on
    # Their training losses, for the epoch's mean in the log.
    epoch_losses: tuple[float, ...] = ()
    # Sums over them of the further measured values, by name.
    epoch_sums: Mapping[str, float] = field(default_factory=dict)
    # Best value of `trainer.training_metric`; None before the first.
    best_metric: float | None = None
    best_epoch: int | None = None  # epoch that gave it
    best_step: int | None = None  # checkpoint that holds it; None if none is kept
    # Micro-batch that trains at the schedule's first rate, as the first one of a run
    # resumed by CREDIT does, or with `update_learning_rate` at `learning_rate`; None
    # for no such micro-batch.
    first_rate_at: int | None = None
    # Learning rate of the next update, if it is not a function of the micro-batches
    # (constant or `plateau`); None otherwise.
    learning_rate: float | None = None
    # The state of the schedule `plateau`; None for others.
    plateau: PlateauState | None = None
    # Names of the variables of "input" and "target", in channel order; None if the
    # checkpoint does not record them, such as one from PyTorch.
    channels: Mapping[str, tuple[str, ...]] | None = None
    # Those of the data as JSON values, see `Coordinates.to_json`; None if the
    # checkpoint does not record them.
    coordinates: Mapping[str, Any] | None = None
    # Samples of that epoch already trained on, of all data-parallel ranks; None in
    # checkpoints of earlier versions, whose batches had one size.
    samples: int | None = None
    # Data-parallel ranks whose samples make a batch of the run, also where it goes on
    # with others; None in checkpoints of earlier versions.
    batch_ranks: int | None = None
    # Updates of the run, by which stages of `trainer.curriculum` end; None in
    # checkpoints of earlier versions.
    updates: int | None = None
    # Index of the stage of `trainer.curriculum` that trained last; None if none did.
    stage: int | None = None
    # Epoch and micro-batches from which the schedule of the learning rate counts, the
    # start of a stage with its own.
    schedule_epoch: int = 0
    schedule_step: int = 0
    # SHA-256 of the files that the config names, by dotted key.
    digests: Mapping[str, str] = field(default_factory=dict)
    # Key of a variable of the data -> its unit, those that are known.
    units: Mapping[str, str] = field(default_factory=dict)
    # The config of the run; None in checkpoints of earlier versions, and in those of
    # runs that were converted, which have it in model.yml.
    config: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return dataclasses.asdict(self) | {"epoch_losses": list(self.epoch_losses)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """The inverse of `to_json`; unknown keys are ignored."""
        available = {field.name for field in dataclasses.fields(cls)}
        fields = {key: value for key, value in values.items() if key in available}
        fields["epoch_losses"] = tuple(map(float, fields.get("epoch_losses", ())))
        if fields.get("plateau") is not None:
            fields["plateau"] = PlateauState(**fields["plateau"])
        if fields.get("channels") is not None:
            fields["channels"] = {k: tuple(v) for k, v in fields["channels"].items()}
        return cls(**fields)


def channel_differences(
    stored: Mapping[str, tuple[str, ...]], current: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """The first difference of each direction from the stored channels, a line each."""
    lines = []
    for direction, names in current.items():
        previous = stored.get(direction, names)
        if previous == names:
            continue
        pairs = enumerate(zip_longest(previous, names, fillvalue="nothing"), 1)
        index, (old, new) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        lines.append(
            f"{direction}: variable {index} is {new}, in the checkpoint it is {old}; "
            f"there the order is {', '.join(previous)}"
        )
    return lines
