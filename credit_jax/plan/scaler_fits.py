"""Plans which blocks of a config are fitted, and which blocks run before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from credit_jax.config.transforms import PreblocksConfig
from credit_jax.transforms import FieldTree, TreeSchema
from credit_jax.transforms.base import variable_of
from credit_jax.transforms.build import parse_preblocks
from credit_jax.transforms.fits import Collected, Fit, NormalizerFit, ScalerFit
from credit_jax.transforms.normalize import NormalizerArgs
from credit_jax.transforms.pipeline import Block
from credit_jax.transforms.scaler_blocks import ScalerPreArgs
from credit_jax.transforms.selection import Selection


class NothingToFitError(ValueError):
    """No block of a config is to be fitted."""


@dataclass(frozen=True)
class FitPlan:
    """The blocks to fit.

    Attributes:
        chain: the preblocks up to the last one to fit, in execution order, without
            scalers and normalizers whose files exist.
        existing: existing files that are not fitted again.
        unpaired: existing files without the other one of their pair, as where the
            command was killed between them; both are fitted again.
    """

    chain: tuple[Fit | Block, ...]
    existing: tuple[Path, ...] = ()
    unpaired: tuple[Path, ...] = ()

    @property
    def fits(self) -> tuple[Fit, ...]:
        """The fits of the chain."""
        return tuple(link for link in self.chain if not isinstance(link, Block))

    @property
    def in_order(self) -> bool:
        """Whether a fit depends on the order and the size of batches."""
        return any(fit.in_order for fit in self.fits)

    def collect(self, tree: FieldTree) -> dict[str, Collected]:
        """Computes the statistics of one batch, by the path of the block.

        Each block is fitted to the output of the blocks before it, except that blocks
        with scalers are not applied.
        """
        collected = {}
        for link in self.chain:
            if isinstance(link, Block):
                tree = link.transform(tree, None)
            else:
                collected[link.path] = link.collect(tree)
        return collected

    def with_units(self, units: Mapping[str, tuple[str, str]]) -> FitPlan:
        """Returns a copy with the units of the variables to write.

        Args:
            units: key -> unit and file, for the variables of the data.
        """
        chain, known = [], {key: unit for key, (unit, _) in units.items()}
        for link in self.chain:
            if isinstance(link, NormalizerFit):
                by_name = {variable_of(key): unit for key, unit in known.items()}
                chain.append(replace(link, units=by_name))
                continue
            if isinstance(link, Block):
                names, keeps = link.transform.renames, link.transform.keeps_units
                known = {
                    names.get(key, key): unit
                    for key, unit in known.items()
                    if keeps or not link.transform.changes(key)
                }
            chain.append(link)
        return replace(self, chain=tuple(chain))

    def with_levels(self, schema: TreeSchema) -> FitPlan:
        """Returns a copy with the values of the levels of the variables to write.

        Args:
            schema: variables of "input" and "target" of the data, with their levels.
        """
        chain = []
        for link in self.chain:
            if isinstance(link, NormalizerFit):
                groups = [group for part in schema.values() for group in part]
                levels = {variable_of(g.var_key): g.levels for g in groups if g.levels}
                link = replace(link, level_values=levels)
            elif isinstance(link, Block):
                schema = link.schema_after(schema)
            chain.append(link)
        return replace(self, chain=tuple(chain))

    def notes(self, schema: TreeSchema) -> list[str]:
        """Finds variables that the data lack, which are ignored, as in CREDIT.

        Args:
            schema: variables of "input" and "target" of the data.
        """
        notes = []
        for link in self.chain:
            if not isinstance(link, Block):
                keys = [group.var_key for part in schema.values() for group in part]
                lines = Selection(link.variables).unmatched(keys)
                notes += [f"{link.path}.args.variables: {line}" for line in lines]
            else:
                schema = link.schema_after(schema)
        return notes


def plan_fits(preblocks: PreblocksConfig, *, overwrite: bool = False) -> FitPlan:
    """Finds the blocks whose files are to be fitted.

    Args:
        preblocks: the preblocks section.
        overwrite: whether to fit files again that exist.

    Raises:
        ConfigError: a type or an argument is unknown or invalid.
        NothingToFitError: no block has files to fit, or all files exist.
        ValueError: two blocks have the same file.
        OSError: a file that another block needs cannot be read.
    """
    chain: list[Fit | Callable[[], Block]] = []
    every: list[Fit] = []
    existing: list[Path] = []
    unpaired: list[Path] = []
    for path, _, args, build in parse_preblocks(preblocks):
        fit = _fit_of(path, args)
        if fit is None:
            chain.append(build)
            continue
        every.append(fit)
        present = [] if overwrite else [file for file in fit.files if file.exists()]
        if len(present) < len(fit.files):
            unpaired += present
            present = []
        existing += present
        chain += [] if present else [fit]
    _check_files(every)
    if not any(isinstance(link, ScalerFit | NormalizerFit) for link in chain):
        raise NothingToFitError(
            f"nothing to fit: {', '.join(map(str, existing))} "
            f"{'are' if len(existing) > 1 else 'is'} there; --overwrite fits anew and "
            "moves the old file aside"
        )
    while not isinstance(chain[-1], ScalerFit | NormalizerFit):
        chain.pop()
    built = [link() if callable(link) else link for link in chain]
    return FitPlan(tuple(built), tuple(existing), tuple(unpaired))


def _fit_of(path: str, args: Any) -> ScalerFit | NormalizerFit | None:
    if isinstance(args, ScalerPreArgs):
        fit = ScalerFit(path, args)
        _ = fit.params  # checks them
        return fit
    return NormalizerFit(path, args) if isinstance(args, NormalizerArgs) else None


def _check_files(fits: Sequence[Fit]) -> None:
    """Checks that there are blocks to fit, and that no two share a file."""
    if not fits:
        raise NothingToFitError(
            "preblocks: there is no block of type bridgescaler_transform or "
            "era5_normalizer, nothing to fit"
        )
    seen: dict[Path, str] = {}
    for fit in fits:
        for file in fit.files:
            place = file.expanduser().resolve()
            if place in seen:
                raise ValueError(
                    f"{seen[place]} and {fit.path} name one file, {file}; give each "
                    "block its own"
                )
            seen[place] = fit.path
