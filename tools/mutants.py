"""Faults of one expression each, and the tests that notice them: `make mutants`.

`tools/mutants.json` has mutants of the packages, drawn once (`--draw`), and what became
of each: killed by a test, lives, or the reason why no test has to notice it. Each runs
in a copy of the tree against the tests nearest to its file. A later run has those that
have no result yet or whose file or tests have changed. Functions are found by their
names and expressions by their texts, so a mutant outlives other edits and moves; for
one whose code is gone, a run draws another of its room and kind.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from itertools import accumulate, cycle
from pathlib import Path
from zlib import crc32

import pytest

from tools.imports import LIBRARIES, ROOT
from tools.touched import nearest

LIST = ROOT / "tools/mutants.json"
COUNT = 200
NAMES = (
    *("parallel", "ops", "nn", "models", "transforms", "losses", "physics"),
    *("training", "data", "forecast", "evaluation"),
)
ROOMS = {name: Path(LIBRARIES[0], name) for name in NAMES}
ROOMS["bridge"] = Path(LIBRARIES[1])
KINDS = (
    *("comparison", "constant", "dropped term", "off by one", "removed psum", "sign"),
    "swapped axis",
)
PAIRS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Add, ast.Sub))
FLIPPED: dict[type, type] = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
SUMS = (
    *("all_gather", "pmax", "pmin", "psum", "psum_each", "psum_scatter"),
    *("psum_varying", "sum_parts"),
)
TEXTS = ("cast", "debug", "info", "join", "log", "message", "print", "warn", "warning")
AXES = ("axis", "axes", "dim")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# What a mutant replaces: expressions that may stand in parentheses, and statements.
ANCHORS = (
    *(ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.IfExp, ast.Subscript),
    *(ast.UnaryOp, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return),
)
LONGEST = 100  # Characters of an expression's text.
TIMEOUT = 240  # Seconds.
IMPORTED = (
    *("tests.conftest", "chex", "flax.nnx", "optax", "orbax.checkpoint"),
    *("pandas", "scipy.special", "torch", "xarray"),
)

Chain = tuple[ast.AST, ...]
Mutant = dict[str, str]


def draw() -> list[Mutant]:
    """Returns mutants of all rooms and kinds, at most one of a function."""
    mutants: list[Mutant] = []
    for number, room in zip(range(COUNT), cycle(ROOMS)):
        turn = number // len(ROOMS)
        kind = KINDS[turn % len(KINDS)]
        mutants.append(another(f"{room}-{turn:02d}", kind, mutants))
    return mutants


def another(name: str, kind: str, mutants: Sequence[Mutant]) -> Mutant:
    """Returns a mutant of the room in an id, of a kind if the room has one left."""
    taken = {(mutant["file"], mutant["function"]) for mutant in mutants}
    each = mutants_in(name.rpartition("-")[0])
    free = [m for m in each if (m["file"], m["function"]) not in taken]
    free = [m for m in free if m["kind"] == kind] or free
    return random.Random(name).choice(free) | {"id": name}


@cache
def mutants_in(room: str) -> list[Mutant]:
    """Returns all mutants of a room, without ids."""
    paths = sorted((ROOT / ROOMS[room]).rglob("*.py"))
    return [mutant for path in paths for mutant in mutants_of(path)]


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yields each mutant of a file, without an id."""
    tree = ast.parse(path.read_text())
    for container, key, node, chain in _places(tree, (tree,)):
        names = [a.name for a in chain if isinstance(a, FUNCTIONS)]
        inside = [a for a in (node, *reversed(chain)) if isinstance(a, ANCHORS)]
        for kind, other in _faults(node, chain):
            for anchor in inside:
                before = ast.unparse(anchor)
                container[key] = other
                after = ast.unparse(anchor if anchor is not node else other)
                container[key] = node
                if len(before) <= LONGEST and _matches(tree, names, before) == [anchor]:
                    yield {
                        "id": "",
                        "file": str(path.relative_to(ROOT)),
                        "function": ".".join(names),
                        "kind": kind,
                        "before": before,
                        "after": after,
                        **dict.fromkeys(("status", "by", "digest"), ""),
                    }
                    break


def _places(node: ast.AST, chain: Chain) -> Iterator[tuple]:
    """Yields where each node stands that is no text, annotation or error."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        places = enumerate(value) if isinstance(value, list) else [(name, value)]
        container = value if isinstance(value, list) else vars(node)
        for key, child in places:
            if not isinstance(child, ast.AST) or _is_text(child):
                continue
            yield container, key, child, chain
            yield from _places(child, (*chain, child))


def _is_text(node: ast.AST) -> bool:
    """Whether a node is text, or what tells of an error."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr():
            return True
        case ast.FunctionDef(name="__repr__" | "__str__"):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in TEXTS
        case ast.BinOp(left=left, right=right):
            return any(
                isinstance(side, ast.JoinedStr)
                or (isinstance(side, ast.Constant) and isinstance(side.value, str))
                for side in (left, right)
            )
    return False


def _faults(node: ast.AST, chain: Chain) -> Iterator[tuple[str, ast.AST]]:
    """Yields the kind of each fault of a node, and what then stands there."""
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            if type(op) in FLIPPED:
                yield "sign", ast.BinOp(left, FLIPPED[type(op)](), right)
            if isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div):
                yield "dropped term", left
        case ast.BoolOp(op=op, values=[first, *others]):
            end = others[:-1]
            yield "dropped term", ast.BoolOp(op, [first, *end]) if end else first
        case ast.Compare(left=left, ops=[op], comparators=right):
            if type(op) in FLIPPED:
                yield "comparison", ast.Compare(left, [FLIPPED[type(op)]()], right)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if node.args:
            if name in SUMS:
                yield "removed psum", node.args[0]
            elif name in ("swapaxes", "moveaxis") and len(node.args) == 3:
                yield "swapped axis", node.args[0]
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not _is_number(operand):
            yield "sign", operand
        case ast.Constant(value=bool(value)) if (
            getattr(chain[-1], "arg", "") != "strict"
        ):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=float(value)):
            yield "constant", ast.Constant(2 * value or 1.0)
        case _ if _is_number(node) and not isinstance(chain[-1], ast.UnaryOp):
            yield _other_number(ast.literal_eval(node), chain)


def _other_number(number: int, chain: Chain) -> tuple[str, ast.AST]:
    near = [a for a in chain if isinstance(a, ast.expr | ast.keyword)][-3:]
    match chain[-1]:
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            is_axis = True
        case _:
            is_axis = any(getattr(above, "arg", "") in AXES for above in near)
    if is_axis:
        return "swapped axis", ast.Constant(number + (-1 if abs(number) == 1 else 1))
    match chain[-1]:
        case ast.Slice() | ast.Subscript() | ast.BinOp(op=ast.Add() | ast.Sub()):
            return "off by one", ast.Constant(number + 1)
    return "constant", ast.Constant(number + 1)


def _is_number(node: ast.AST) -> bool:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)):
            return type(value) is int
    return isinstance(node, ast.Constant) and type(node.value) is int


def _matches(tree: ast.AST, names: Sequence[str], text: str) -> list[ast.AST]:
    """Returns what has a text in a function (names of classes, functions)."""
    scopes = [tree]
    for name in names:
        scopes = [
            node
            for scope in scopes
            for node in ast.walk(scope)
            if isinstance(node, FUNCTIONS) and node.name == name
        ]
    nodes = {node: None for scope in scopes for node in ast.walk(scope)}
    return [n for n in nodes if isinstance(n, ANCHORS) and ast.unparse(n) == text]


def mutated(mutant: Mutant) -> tuple[Path, str] | None:
    """Returns the file of a mutant and its text then, or None if that code is gone."""
    names = mutant["function"].split(".") if mutant["function"] else []
    path = Path(mutant["file"])
    moved = (p for name in LIBRARIES for p in sorted((ROOT / name).rglob(path.name)))
    for file in (ROOT / path, *moved):
        source = file.read_text() if file.exists() else ""
        match _matches(ast.parse(source), names, mutant["before"]):
            case [ast.expr() | ast.stmt() as node]:
                break
    else:
        return None
    # Columns count bytes.
    lines = source.encode().splitlines(keepends=True)
    lengths = [0, *accumulate(map(len, lines))]
    start = lengths[node.lineno - 1] + node.col_offset
    end = lengths[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
    form = "({})" if isinstance(node, ast.expr) else "{}"
    after = form.format(mutant["after"]).encode()
    text = source.encode()[:start] + after + source.encode()[end:]
    return file.relative_to(ROOT), text.decode()


def run(mutant: Mutant, number: int, trees: Path) -> Mutant:
    """Returns a mutant with what some tests nearest to its file say of it.

    Args:
        mutant: a mutant of the list.
        number: how many files of tests.
        trees: a folder in which each process has a copy of the tree.
    """
    if (place := mutated(mutant)) is None:
        others = json.loads(LIST.read_text())
        mutant = another(mutant["id"], mutant["kind"], others)
        place = mutated(mutant)
        assert place is not None
    file, text = place
    tree = copy(trees / str(os.getpid()))
    original = (tree / file).read_text()
    (tree / file).write_text(text)
    tests = nearest(file)[:number]
    status, by = "lives", mutant["by"] if mutant["status"] == "reason" else ""
    for some in filter(None, (tests[:1], tests[1:])):
        code, failed = failures(tree, "-x", *some)
        if code not in (0, 5):
            status, by = "killed" if code else "late", (*failed, *some)[0]
            break
    (tree / file).write_text(original)
    status = "reason" if status == "lives" and by else status
    mutant = mutant | {"status": status, "by": by}
    return mutant | {"digest": digest(mutant, file, number)}


def failures(
    tree: Path, *words: str, limit: float = TIMEOUT
) -> tuple[int | None, list[str]]:
    """Runs quick tests in a copy: the exit status, None if late, and what failed."""
    out = tree / "pytest.txt"
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            _become_pytest(tree, out, words)
        os._exit(pytest.ExitCode.INTERNAL_ERROR)
    end = time.monotonic() + limit
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.1)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not done[0]:
        os.waitpid(child, 0)
        return None, []
    lines = out.read_text().splitlines()
    failed = [
        line.split(" - ")[0] for line in lines if line[:6] in ("FAILED", "ERROR ")
    ]
    return os.waitstatus_to_exitcode(done[1]), [f.partition(" ")[2] for f in failed]


def _become_pytest(tree: Path, out: Path, words: Sequence[str]) -> None:
    os.setsid()
    os.chdir(tree)
    for target in (1, 2):
        os.dup2(os.open(out, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), target)
    for name in [n for n in sys.modules if n.startswith((*LIBRARIES, "tests"))]:
        del sys.modules[name]
    sys.path[:] = [str(tree), *(p for p in sys.path if p not in ("", str(ROOT)))]
    os.environ["PYTHONPATH"] = str(tree)
    # Compiled modules are kept, whatever the shell says.
    sys.dont_write_bytecode = False
    options = ("-q", "--tb=no", "-m", "not slow", "-p", "no:cacheprovider")
    os._exit(pytest.main([*options, *words]))


def digest(mutant: Mutant, file: Path, number: int) -> str:
    """Returns a checksum of a file and of what killed its mutant, or of its tests."""
    killer = Path(mutant["by"].partition("::")[0])
    tests = [killer] if mutant["status"] == "killed" else nearest(file)[:number]
    texts = [(ROOT / n).read_bytes() for n in (file, *tests) if (ROOT / n).is_file()]
    return f"{crc32(b''.join(texts)):08x}"


def stale(mutant: Mutant, number: int) -> bool:
    """Whether a mutant has no result, or its file or tests have changed since."""
    if mutant["status"] in ("", "late") or (place := mutated(mutant)) is None:
        return True
    return digest(mutant, place[0], number) != mutant["digest"]


def copy(folder: Path) -> Path:
    """Copies the files of the tree that git lists or would add, unless that is done."""
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in done.stdout.splitlines() if not folder.exists() else ():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def write(mutants: Sequence[Mutant]) -> None:
    """Writes the list, one mutant a line."""
    lines = ",\n".join(json.dumps(mutant) for mutant in mutants)
    LIST.write_text(f"[\n{lines}\n]\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs mutants, writes the list after each, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true", help="draw the list anew")
    parser.add_argument("--all", action="store_true", help="run all of them again")
    parser.add_argument("--room", choices=ROOMS, help="run those of one package")
    parser.add_argument("--only", nargs="+", metavar="ID", help="run these")
    parser.add_argument("--jobs", type=int, default=1, help="copies that run at once")
    parser.add_argument("--nearest", type=int, default=4, help="test files of each")
    options = parser.parse_args(arguments)
    if options.draw:
        return write(draw())
    mutants = json.loads(LIST.read_text())
    chosen = [m for m in mutants if m["id"].startswith(options.room or "")]
    if options.only:
        chosen = [m for m in mutants if m["id"] in options.only]
    elif not options.all:
        chosen = [m for m in chosen if stale(m, options.nearest)]
    # One of each room after the other: a part of a run is a sample, too.
    chosen.sort(key=lambda mutant: mutant["id"].rpartition("-")[2])
    # What the tests import of others is imported once, before processes fork.
    for name in IMPORTED:
        import_module(name)
    warnings.filterwarnings("ignore", "os.fork")  # No array exists yet.
    context = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(options.jobs, mp_context=context) as pool,
    ):
        work = partial(run, number=options.nearest, trees=Path(folder))
        for mutant in pool.map(work, chosen):
            mutants[[m["id"] for m in mutants].index(mutant["id"])] = mutant
            print(mutant["id"], mutant["status"], mutant["by"], flush=True)
            write(mutants)
        ids = [mutant["id"] for mutant in chosen]
        killed = [m for m in mutants if m["id"] in ids and m["status"] == "killed"]
        if killed:
            tree = copy(Path(folder, "original"))
            killers = {mutant["by"] for mutant in killed}
            _, broken = failures(tree, *killers, limit=TIMEOUT * len(killers))
            for mutant in killed:
                if mutant["by"] in broken:
                    mutant.update(status="", by=f"{mutant['by']} fails without it")
            write(mutants)
    counts = {room: Counter() for room in ROOMS}
    for mutant in mutants:
        counts[mutant["id"].rpartition("-")[0]][mutant["status"]] += 1
    counts["all"] = sum(counts.values(), Counter())
    for room, count in counts.items():
        print(f"{room:10}", *(f"{n:4} {s or 'not run'}" for s, n in count.items()))
    sys.exit(counts["all"]["lives"] > 0)


if __name__ == "__main__":
    main()
