"""The page of a certificate: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from credit_jax.certification.certify import Certificate, MeshVerdict
from credit_jax.certification.verdict import Check
from credit_jax.visualization.html import (
    Cell,
    TableRow,
    definitions,
    document,
    element,
    table,
)


def page_of(certificate: Certificate) -> str:
    """Returns the text of the page.

    Args:
        certificate: what was compared.
    """
    title = f"Certificate: {certificate.subject}"
    sections = {
        "Meshes": _meshes(certificate),
        "Places that differ": _places(certificate),
        "Serial CREDIT": element("pre", escape("\n".join(certificate.credit)))
        if certificate.credit
        else "",
        "Bounds": _bounds(certificate),
        "Not certified": "".join(
            element("p", escape(line)) for line in certificate.not_certified
        ),
        "Provenance": definitions(certificate.provenance),
    }
    body = "\n".join(
        element("section", f"<h2>{name}</h2>\n{content}")
        for name, content in sections.items()
        if content
    )
    head = f"<h1>{escape(title)}</h1>\n{element('p', escape(_verdict(certificate)))}"
    return document(title, f"{head}\n{body}")


def meshes_text(number: int, verb: str = "") -> str:
    """A number of meshes, with a verb, in the plural unless it is one.

    >>> meshes_text(1, "give"), meshes_text(2, "give"), meshes_text(2)
    ('1 mesh gives', '2 meshes give', '2 meshes')
    """
    noun, ending = ("mesh", "s") if number == 1 else ("meshes", "")
    return f"{number} {noun} {verb}{ending}" if verb else f"{number} {noun}"


def _verdict(certificate: Certificate) -> str:
    count = len(certificate.verdicts)
    broken = [v.mesh for v in certificate.verdicts if not v.passed]
    if not certificate.credit_passed:
        broken.append("serial CREDIT")
    if not broken:
        text = meshes_text(count, "give")
        text = f"Passed: {text} what mesh {certificate.reference} gives."
    else:
        text = f"Not passed: {', '.join(broken)}."
    return (
        f"{text} Compared were forecasts, losses, every gradient, the weights after "
        "some updates, the state of the model, a checkpoint written on one mesh and "
        "restored on another, and what a run logs that goes on from it. Errors are "
        "relative, in the L2 norm; 0 means the same bits."
    )


def _meshes(certificate: Certificate) -> str:
    quantities = [check.quantity for check in _checks(certificate)]
    columns = [("mesh", True), ("verdict", True)]
    columns += [(quantity, False) for quantity in quantities]
    return table("meshes", columns, _rows(certificate), "errors by mesh")


def _checks(certificate: Certificate) -> tuple[Check, ...]:
    """Those of any mesh that runs; all in a dtype have the same quantities, bounds."""
    return max((v.checks for v in certificate.verdicts), key=len, default=())


def _rows(certificate: Certificate) -> Iterator[TableRow]:
    quantities = [check.quantity for check in _checks(certificate)]

    def row(name: str, verdict: MeshVerdict, checks: Sequence[Check]) -> TableRow:
        cells = {check.quantity: _cell(check) for check in checks}
        errors = [cells.get(quantity, Cell("")) for quantity in quantities]
        return TableRow(name, [_state(verdict), *errors])

    for verdict in certificate.verdicts:
        if verdict.checks or not verdict.in_float64:
            yield row(verdict.mesh, verdict, verdict.checks)
        if verdict.in_float64:
            yield row(f"{verdict.mesh}, float64", verdict, verdict.in_float64)


def _state(verdict: MeshVerdict) -> Cell:
    text = "passed" if verdict.passed else "differs"
    if verdict.in_float64 and verdict.checks:
        text += " in float64"
    return Cell(text, kind="text")


def _cell(check: Check) -> Cell:
    where = f" ({check.where})" if check.where and not check.passed else ""
    error = f"{check.error:.1e}{where}" if check.error else "0"
    bound = f" {'≤' if check.passed else '>'} {check.bound:.0e}" if check.bound else ""
    return Cell(error + bound, check.error)


def _places(certificate: Certificate) -> str:
    places = {v.mesh: v.place for v in certificate.verdicts if v.place}
    return definitions(places) if places else ""


def _bounds(certificate: Certificate) -> str:
    bounds = {
        check.quantity: f"{check.bound:.0e}" if check.bound else "the same bits"
        for check in _checks(certificate)
    }
    vanishing = ""
    if certificate.vanishing:
        vanishing = element(
            "p",
            "Left out of the change of weights, because their gradient is 0 but for "
            f"rounding: {escape(', '.join(certificate.vanishing))}.",
        )
    origin = element("p", escape(certificate.bounds.origin))
    return definitions(bounds) + origin + vanishing
