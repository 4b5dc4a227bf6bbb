"""Plans which blocks of a config are fitted, and which blocks run before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from credit_jax.config.transforms import PreblocksConfig
from credit_jax.io.errors import errors_of
from credit_jax.io.remote import local_path
from credit_jax.transforms import FieldTree, TreeSchema
from credit_jax.transforms.base import OfVariables, variable_of
from credit_jax.transforms.build import parse_pipeline
from credit_jax.transforms.pipeline import Block
from credit_jax.transforms.scaling import ScalerPreblock
from credit_jax.transforms.statistics import Collected, Fitted, VariableFacts


class NothingToFitError(ValueError):
    """No block of a config is to be fitted."""


@dataclass(frozen=True)
class FitPlan:
    """The blocks to fit."""

    # The preblocks up to the last one to fit, in execution order, without scalers and
    # normalizers whose files exist.
    chain: tuple[Block, ...]
    existing: tuple[Path, ...] = ()  # existing files that are not fitted again
    # Existing files without the other one of their pair, as where the command was
    # killed between them; both are fitted again.
    unpaired: tuple[Path, ...] = ()
    # Path of a block to fit -> what is known of the variables before it.
    facts: Mapping[str, VariableFacts] = field(default_factory=dict)
    # Variables that the data lack, which are ignored, as in CREDIT.
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> dict[str, Fitted]:
        """Path -> block, for those to fit."""
        blocks = ((block.path, block.transform) for block in self.chain)
        return {path: fit for path, fit in blocks if isinstance(fit, Fitted)}

    @property
    def in_order(self) -> bool:
        """Whether a fit depends on the order and the size of batches."""
        return any(fit.in_order for fit in self.fits.values())

    def collect(self, tree: FieldTree) -> dict[str, Collected]:
        """Computes the statistics of one batch, by the path of the block.

        Each block is fitted to the output of the blocks before it, except that blocks
        with scalers are not applied.
        """
        collected = {}
        for block in self.chain:
            if isinstance(block.transform, Fitted):
                with errors_of(block.path):
                    collected[block.path] = block.transform.collect(tree)
            else:
                tree = block(tree)
        return collected

    def of_data(
        self, schema: TreeSchema, units: Mapping[str, tuple[str, str]]
    ) -> FitPlan:
        """Returns a copy with what is known of the variables of the data, and notes."""
        facts, notes = {}, list[str]()
        units_by_key = {key: unit for key, (unit, _) in units.items()}
        for block in self.chain:
            transform = block.transform
            if isinstance(transform, Fitted):
                groups = [group for part in schema.values() for group in part]
                facts[block.path] = VariableFacts(
                    {variable_of(key): unit for key, unit in units_by_key.items()},
                    {variable_of(g.var_key): g.levels for g in groups if g.levels},
                )
                if isinstance(transform, OfVariables):
                    lines = transform.unmatched(g.var_key for g in groups)
                    notes += [f"{block.path}.args.variables: {line}" for line in lines]
                continue
            units_by_key = {
                transform.effects.renames.get(key, key): unit
                for key, unit in units_by_key.items()
                if transform.keeps_units or not transform.changes(key)
            }
            schema = transform.schema_after(schema)
        return replace(self, facts=facts, notes=tuple(notes))


def plan_fits(preblocks: PreblocksConfig, *, overwrite: bool = False) -> FitPlan:
    """Finds the blocks whose files are to be fitted."""
    chain, every = list[Block](), dict[str, Fitted]()
    existing, unpaired = list[Path](), list[Path]()
    for block in parse_pipeline(preblocks).blocks:
        fit = block.transform
        if not isinstance(fit, Fitted):
            chain.append(block)
            continue
        if isinstance(fit, ScalerPreblock):
            with errors_of(block.path):
                _ = fit.params  # checks them
        every[block.path] = fit
        files = fit.fitted_files
        present = [] if overwrite else [file for file in files if file.exists()]
        if len(present) < len(files):
            unpaired += present
            present = []
        existing += present
        chain += [] if present else [block]
    if not every:
        raise NothingToFitError(
            "preblocks: there is no block of type bridgescaler_transform or "
            "era5_normalizer, nothing to fit"
        )
    seen: dict[Path, str] = {}
    for path, fit in every.items():
        for file in fit.fitted_files:
            resolved = Path(local_path(str(file))).expanduser().resolve()
            if resolved in seen:
                raise ValueError(
                    f"{seen[resolved]} and {path} name one file, {file}; give each "
                    "block its own"
                )
            seen[resolved] = path
    while chain and not isinstance(chain[-1].transform, Fitted):
        chain.pop()
    if not chain:
        raise NothingToFitError(
            f"nothing to fit: {', '.join(map(str, existing))} "
            f"{'are' if len(existing) > 1 else 'is'} there; --overwrite fits anew and "
            "moves the old file aside"
        )
    for block in chain:
        if not isinstance(block.transform, Fitted):
            with errors_of(block.path):
                block.transform.open()
    return FitPlan(tuple(chain), tuple(existing), tuple(unpaired))
