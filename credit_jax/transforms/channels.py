"""Names and channels: `rename`, `concat`, `reconstruct`, `flatten_to_tensor`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os.path import expandvars
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from pydantic import PrivateAttr

from credit_jax.config.components import FilePath
from credit_jax.io.errors import errors_of
from credit_jax.named_fields.tree import by_key, by_source
from credit_jax.physics.arrays import namespace
from credit_jax.transforms import base
from credit_jax.transforms.base import FieldTree, StepContext, Transform, TreeSchema
from credit_jax.transforms.scaling import Method, OfScalers, scale

# Rank of a field type among the channels of x; CREDIT's FIELD_TYPE_RANK.
FIELD_TYPE_RANK = {"prognostic": 0, "static": 1, "dynamic_forcing": 2, "diagnostic": 3}


def channel_rank(var_key: str) -> tuple[int, int]:
    """Sort key of a variable in x: field type, then 3-D before 2-D."""
    _, field_type, dims, *_ = [*var_key.split("/"), "", ""]
    rank = FIELD_TYPE_RANK.get(field_type, len(FIELD_TYPE_RANK))
    return rank, 0 if dims == "3d" else 1


@base.preblock("concat")
class Concat(Transform):
    """Joins named fields to x and y.

    Attributes:
        to_device: no effect; the training loop places batches on devices.
    """

    reach: ClassVar = base.Reach.CHANNEL
    keeps_units: ClassVar = True

    to_device: bool = True

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Joins fields along channels: x sorted by `channel_rank`, y in its order."""
        # The order of variables is that of input_channel_map and channel_map, which a
        # traced step needs, since JAX sorts the keys of dicts. Arrays are (batch,
        # channel, time, lat, lon) float32, or wider if traced.
        new = {key: v for key, v in tree.items() if key not in ("input", "target")}
        inputs, targets = (by_key(tree.get(part, {})) for part in ("input", "target"))
        if not (inputs or targets):
            raise ValueError("concat: the batch has no fields")
        traced = context is not None
        if inputs:
            ranked = [
                key
                for fields in tree["input"].values()
                for key in sorted(fields, key=channel_rank)
            ]
            new["x"] = join(inputs, _order(tree, "input_channel_map", traced) or ranked)
        if targets:
            new["y"] = join(
                targets, _order(tree, "channel_map", traced) or list(targets)
            )
        return new

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """Returns the variables of x in channel order; those of y keep their order."""
        inputs = schema.get("input", ())
        sources = [*dict.fromkeys(group.source for group in inputs)]
        rank = lambda g: (sources.index(g.source), channel_rank(g.var_key))  # noqa: E731
        return {**schema, "input": sorted(inputs, key=rank)}


@base.preblock("to_device")
class ToDevice(Transform):
    """Does nothing; CREDIT moves arrays by it.

    Attributes:
        device: no effect; the training loop places batches on devices.
    """

    reach: ClassVar = base.Reach.CHANNEL
    keeps_units: ClassVar = True
    may_repeat: ClassVar = True

    device: str = "cpu"

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        return dict(tree)

    inverse = __call__


def _order(tree: FieldTree, name: str, traced: bool) -> list[str] | None:
    """The keys of a channel map in channel order; None if there is none."""
    if name not in tree:
        if traced:
            raise ValueError(
                f"concat: a traced batch needs {name!r}, {{key: slice}}, for the order "
                f"of the variables; it has: {', '.join(sorted(tree))}"
            )
        return None
    return sorted(tree[name], key=lambda key: tree[name][key].start)


def join(fields: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Concatenates fields along channels by key, in float32 (or wider, if traced)."""
    fields = {key: fields[key] for key in keys}
    shapes = {(f.shape[0], *f.shape[2:]) for f in fields.values()}
    if len(shapes) > 1:
        listed = ", ".join(f"{key} {tuple(f.shape)}" for key, f in fields.items())
        raise ValueError(
            "concat: fields (batch, level, time, lat, lon) must agree in all but the "
            f"levels: {listed}"
        )
    arrays = list(fields.values())
    if all(isinstance(array, np.ndarray) for array in arrays):
        return np.concatenate(arrays, axis=1, dtype=np.float32)
    joined = jnp.concatenate(arrays, axis=1)
    return joined.astype(jnp.promote_types(joined.dtype, jnp.float32))


@base.postblock("reconstruct")
class Reconstruct(Transform):
    """Splits the prediction, or the target, into named fields.

    Attributes:
        detach: whether to stop gradients at the fields.
        in_key: entry to split: "y_pred", "y" for the target, or "x".
        out_key: entry for the fields.

    Differs from CREDIT: splits "x", too, for transforms that compare with the input.
    """

    detach: bool = True
    in_key: str = "y_pred"
    out_key: str = "y_processed"

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Adds the entry `out_key`, {source: {key: (batch, level, time, lat, lon)}}."""
        # `in_key` is (batch, channel, time, lat, lon) or (batch, channel, lat, lon),
        # and the tree has "channel_map" ("input_channel_map" for x) {key: slice}.
        channel_map = "input_channel_map" if self.in_key == "x" else "channel_map"
        for key in (self.in_key, channel_map):
            if key not in tree:
                raise ValueError(
                    f"reconstruct: the batch has no {key!r}; it has: {sorted(tree)}"
                )
        flat, slices = tree[self.in_key], tree[channel_map]
        count = max(part.stop for part in slices.values())
        if flat.shape[1] != count:
            raise ValueError(
                f"reconstruct: {self.in_key!r} has {flat.shape[1]} channels, the "
                f"channel map {count}"
            )
        if flat.ndim == 4:
            flat = flat[:, :, None]
        if self.detach and isinstance(flat, jax.Array):
            flat = jax.lax.stop_gradient(flat)
        fields = {key: flat[:, part] for key, part in slices.items()}
        return {**tree, self.out_key: by_source(fields)}


@base.postblock("flatten_to_tensor")
class FlattenToTensor(base.OutputBlock, OfScalers):
    """Joins named fields to one array of channels.

    Attributes:
        scaler_path: JSON file of fitted scalers; null does not scale.
        variables: whole keys of the variables to scale; null is all, an empty list
            none.
        method: "transform" or "inverse_transform".
        key: entry with the fields, which do not change.
        out_key: entry for the array.
    """

    variables: tuple[str, ...] | None = None
    method: Method = "transform"
    key: str = "y_processed"
    out_key: str = "y_pred"

    def by_level(self, key: str) -> bool:
        return self.variables is None or key in self.variables

    def open(self) -> None:
        if self.scaler_path is not None:
            super().open()

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Adds the entry `out_key`, (batch, channel, time, lat, lon)."""
        slices, path = tree["channel_map"], self.scaler_path

        def change(key: str, x: Any) -> Any:
            if path is None or key not in slices or not self.by_level(key):
                return x
            scaler = self.scalers_of("target", [key])[key]
            with errors_of(path, key):
                return scale(scaler, x, self.method, context=context)

        scaled = base.change_entry(tree, change, self.key)[self.key]
        order = sorted(slices, key=lambda key: slices[key].start)
        fields = [scaled[base.source_of(key)][key] for key in order]
        joined = namespace(*fields).concatenate(fields, axis=1)
        return {**tree, self.out_key: joined}


@base.preblock("rename")
class Rename(base.InputBlock):
    """Changes keys of variables, by either `mapping` or `mapping_file`.

    Keys are replaced simultaneously: a new key that is also an old key is not replaced
    again.

    Attributes:
        mapping: old key -> new key, such as "GFS/prognostic/3d/TMP" to
            "ERA5/prognostic/3d/T".
        mapping_file: YAML file with such a mapping.
    """

    reach: ClassVar = base.Reach.CHANNEL
    keeps_units: ClassVar = True

    mapping: dict[str, str] | None = None
    mapping_file: FilePath | None = None

    # Old key -> new key.
    _mapping: Mapping[str, str] = PrivateAttr()

    def conflicts(self) -> Iterator[str]:
        if (self.mapping is None) == (self.mapping_file is None):
            yield "give one of mapping and mapping_file"

    def open(self) -> None:
        mapping = self.mapping
        if mapping is None:
            path = expandvars(self.mapping_file or "")
            mapping = yaml.safe_load(Path(path).read_text()) or {}
            if not isinstance(mapping, dict) or not all(
                isinstance(text, str) for pair in mapping.items() for text in pair
            ):
                raise ValueError(f"{path} must hold lines 'old key: new key'")
        self._mapping = mapping

    @property
    def effects(self) -> base.Effects:
        return base.Effects(renames=self._mapping)

    def changes(self, key: str) -> bool:
        """False: no value is another one afterwards."""
        return False

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Renames the fields of input and target."""
        return self._renamed(tree, self._mapping)

    def inverse(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        return self._renamed(tree, {new: old for old, new in self._mapping.items()})

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """Returns the variables with their new keys, grouped by source."""
        new_schema = dict(schema)
        for part in filter(schema.__contains__, self.data_types):
            groups = {group.var_key: group for group in schema[part]}
            ordered = _pairs(groups, self._mapping, part)
            new_schema[part] = [
                dataclasses.replace(groups[old], var_key=new) for new, old in ordered
            ]
        return new_schema

    def describe(self, units: base.Descriptions) -> base.Descriptions:
        """Returns the attributes of the old keys, by their new keys."""
        return {new: units[old] for old, new in self._mapping.items() if old in units}

    def _renamed(self, tree: FieldTree, mapping: Mapping[str, str]) -> dict[str, Any]:
        renamed = dict(tree)
        for part in self.entries(tree):
            fields = by_key(tree[part])
            pairs = _pairs(fields, mapping, part)
            renamed[part] = by_source({new: fields[old] for new, old in pairs})
        return renamed


def _pairs(
    keys: Iterable[str], mapping: Mapping[str, str], part: str
) -> list[tuple[str, str]]:
    """Pairs (new, old) of keys, by source; sources that are new come last."""
    keys = list(keys)
    pairs = [(mapping.get(old, old), old) for old in keys]
    new_keys = [new for new, _ in pairs]
    twice = sorted({new for new in new_keys if new_keys.count(new) > 1})
    if twice:
        raise ValueError(
            f"two variables of {part} would be called {', '.join(twice)}; "
            "rename one of them to something else"
        )
    sources = [*dict.fromkeys(map(base.source_of, (*keys, *new_keys)))]
    return sorted(pairs, key=lambda pair: sources.index(base.source_of(pair[0])))
