"""The page of a certificate: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from credit_jax.extensions.certification.certify import Certificate, MeshVerdict
from credit_jax.extensions.certification.verdict import Check
from credit_jax.extensions.plots.html import (
    Cell,
    Part,
    TableRow,
    page_of_sections,
    part,
)


def page_of(certificate: Certificate) -> str:
    """Returns the text of the page."""
    # Those of any mesh that runs; all in a dtype have the same quantities, bounds.
    checks = max((v.checks for v in certificate.verdicts), key=len, default=())
    quantities = [check.quantity for check in checks]
    columns = [("mesh", True), ("verdict", True)]
    columns += [(quantity, False) for quantity in quantities]
    rows = [*_rows(certificate, quantities)]
    differing = {v.mesh: v.place for v in certificate.verdicts if v.place}
    credit = "\n".join(certificate.credit)
    bounds = {
        check.quantity: f"{check.bound:.0e}" if check.bound else "the same bits"
        for check in checks
    }
    texts = [certificate.bounds.origin]
    if certificate.vanishing:
        texts.append(
            "Left out of the change of weights, because their gradient is 0 but for "
            f"rounding: {', '.join(certificate.vanishing)}."
        )
    caption = "errors by mesh"
    sections: dict[str, list[Part]] = {
        "Meshes": [
            part("table", id="meshes", columns=columns, rows=rows, caption=caption)
        ],
        "Places that differ": [part("definitions", pairs=differing)] * bool(differing),
        "Serial CREDIT": [part("pre", text=credit)] * bool(credit),
        "Bounds": [
            part("definitions", pairs=bounds),
            *(part("paragraph", text=text) for text in texts),
        ],
        "Not certified": [
            part("paragraph", text=line) for line in certificate.not_certified
        ],
        "Provenance": [part("definitions", pairs=certificate.provenance)],
    }
    title = f"Certificate: {certificate.subject}"
    return page_of_sections(title, _verdict(certificate), sections)


def meshes_text(number: int, verb: str = "") -> str:
    """A number of meshes, with a verb, in the plural unless it is one.

    >>> meshes_text(1, "give"), meshes_text(2, "give"), meshes_text(2)
    ('1 mesh gives', '2 meshes give', '2 meshes')
    """
    noun, ending = ("mesh", "s") if number == 1 else ("meshes", "")
    return f"{number} {noun} {verb}{ending}" if verb else f"{number} {noun}"


def _verdict(certificate: Certificate) -> str:
    broken = [v.mesh for v in certificate.verdicts if not v.passed]
    if not certificate.credit_passed:
        broken.append("serial CREDIT")
    if not broken:
        text = meshes_text(len(certificate.verdicts), "give")
        text = f"Passed: {text} what mesh {certificate.reference} gives."
    else:
        text = f"Not passed: {', '.join(broken)}."
    return (
        f"{text} Compared were forecasts, losses, every gradient, the weights after "
        "some updates, the state of the model, a checkpoint written on one mesh and "
        "restored on another, and what a run logs that goes on from it. Errors are "
        "relative, in the L2 norm; 0 means the same bits."
    )


def _rows(certificate: Certificate, quantities: Sequence[str]) -> Iterator[TableRow]:
    def row(name: str, verdict: MeshVerdict, checks: Sequence[Check]) -> TableRow:
        cells = {check.quantity: _cell(check) for check in checks}
        text = "passed" if verdict.passed else "differs"
        text += " in float64" if verdict.in_float64 and verdict.checks else ""
        errors = [cells.get(quantity, Cell("")) for quantity in quantities]
        return TableRow(name, [Cell(text, kind="text"), *errors])

    for verdict in certificate.verdicts:
        if verdict.checks or not verdict.in_float64:
            yield row(verdict.mesh, verdict, verdict.checks)
        if verdict.in_float64:
            yield row(f"{verdict.mesh}, float64", verdict, verdict.in_float64)


def _cell(check: Check) -> Cell:
    origin = f" ({check.where})" if check.where and not check.passed else ""
    error = f"{check.error:.1e}{origin}" if check.error else "0"
    bound = f" {'≤' if check.passed else '>'} {check.bound:.0e}" if check.bound else ""
    return Cell(error + bound, check.error)
