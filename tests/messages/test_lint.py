"""Each message names the key or file, what it got, what is expected and what to do."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.messages.engine import BLOCK

TEXTS = sorted(Path(__file__).parent.glob("*.txt"))
VERBS = (
    "add|bring|build|change|choose|complete|continue|convert|copy|count|declare|divide"
    "|drop|exchange|fit|give|increase|install|keep|leave|lower|make|move|name|pad|pass"
    "|put|raise|read|recompute|remove|rename|repair|repeat|replace|run|say|see|set"
    "|shift|start|take|train|transpose|try|turn|unset|use|wait|widen|write"
)
RULES = {
    "the key, option or file": re.compile(
        r"(^|\s|--set )(--[a-z][\w-]*|[\w*/]+[\w.*/\[\]-]*(?=:( |$)))"
        r"|FOLDER|\w\.(nc|zarr|ya?ml|json|pt|npy|py)\b|['\"`][^'\"]*['\"`]"
        r"|\w+\.[a-z_.]+ |\b[a-z]+_[a-z_]+\b"
    ),
    "what it got": re.compile(
        r"\bgot\b|'.*'|\d|\bmissing\b|\bunknown\b|\b(true|false|null|nan|twice|another)\b"
        r"|\b(no|not|nothing|already|given|has|have|lacks?|holds?|without|differs?|both|cannot|none|None)\b"
    ),
    # Also by what is not as expected.
    "what is expected": re.compile(
        r"\b(must|expected|needs?|needed|required|nearest|there (are|is)|known keys"
        r"|such as|but|only|differs?|than|same|would fit|one of|that of|no|not|cannot"
        r"|missing|twice|before|unknown|already|none|without|nothing|would|outside|NaN"
        r"|fill value|never|gives|the model has)\b"
    ),
    # What must be is also what to write.
    "what to do": re.compile(
        rf"([;:(.,]|\b(or|and|to|first))\s+`?({VERBS})\b"
        r"|`credit-jax|pip install|there are\b|known keys|such as|would fit|can be"
        r"|\b(must|expected|needs|nearest|required|it has|takes|those are)\b"
        r"|is it complete\?",
        re.IGNORECASE,
    ),
}
# Messages that a rule does not fit, and why.
EXEMPT = {
    "does not exist": "only its user knows which file is meant",
    "could not determine a constructor": "PyYAML's text; the file, line and column",
    "run write padding_conf": "it is said within a sentence",
    "can add 0 to": "the range of rows is what is expected",
    "of its GroupNorm do not divide": "the key stands in brackets",
    "schedule takes start": "the keys that it takes are expected",
    "an even number fills the grid": "it is said within a sentence",
    "channels around the region": "several keys of a section together",
    "normalizes columns by weights": "the value has no use in CREDIT, either",
    r": parallelism (tp|domain|etp) (is|must)": "the key comes first",
    "pbs: missing; it says": "it is followed by the keys to give",
    r"; an? \w+ here is an?": "what is expected is its last part",
    "py cannot be imported": "the error is that of the user's own code",
    "itself; take another name": "any other name is as good",
    "--data: there is no": "only its user knows which file is meant",
    "no file matches 'none_": "what the folder holds is left out of the text",
    "are too few to train": "how many are enough depends on the length of samples",
    "NAME is needed with|has no levels, got": "the option is named, or is one too many",
    "the format is that of the suffix|a card compares errors": "one of them is to do",
    "has no crps beside": "the baseline can be another one",
    "is a multiple of it, so that": "any number of steps is as good",
    "needs a block of type": "what lacks is all that it got",
    "; reconcile them in": "it is said with a verb that no other message has",
    "belongs to --score": "the option is one too many",
    "Z500: not in both": "those of both are listed",
    "name one file, x.json": "two keys are named, which must differ",
    "^convert: ": "what CREDIT has no words for: another config, or --drop",
    "^(torch_files|optimizer|packages): ": "of broken files: only another copy helps",
    "^states: '(no|another) ": "of an argument, by its name in the signature",
    "at least 1$|; add --full": "what is wrong is said by what to write instead",
    "no point of the grid is in|is not between two": "any other range is as good",
    "is no multiple of the time step, 6h": "any multiple is as good",
    "unit abbreviation w/o a number": "pandas' text",
}
# How many messages of each text lack a part: they were in no text before the rules.
OPEN = {
    "arguments": 22,
    "assimilation": 2,
    "background": 4,
    "bases": 6,
    "bridgescaler": 5,
    "commands": 10,
    "custom_objects": 2,
    "data": 6,
    "data_store": 1,
    "demo": 3,
    "epoch_end": 1,
    "evaluation": 5,
    "finetune": 5,
    "forecast": 14,
    "function": 6,
    "gen1_post_conf": 3,
    "key_map": 2,
    "losses": 16,
    "metadata": 2,
    "models": 7,
    "noaa": 9,
    "observations": 4,
    "parallel": 27,
    "plot": 6,
    "preprocess": 1,
    "sensitivity": 1,
    "singular_members": 2,
    "stations": 3,
    "stores": 3,
    "submit": 1,
    "targets": 1,
    "temporal": 3,
    "tp_plan": 2,
    "training": 2,
    "transforms": 29,
    "variational": 2,
}


def faults(message: str) -> list[str]:
    return [what for what, rule in RULES.items() if not rule.search(message)]


def messages() -> list[tuple[str, str]]:
    """The messages of errors, with the file and the name of the case."""
    found = []
    for path in TEXTS:
        for name, block in BLOCK.findall(path.read_text()):
            kind = ""
            for line in block.splitlines():
                if line.startswith("- ") and kind not in ("says", "warns", "exit 0"):
                    source = kind.partition(" of ")[2]
                    message = line[2:].removeprefix("error: ")
                    found.append([f"{path.stem}: {name}", f"{source} {message}"])
                elif line.startswith("  ") and found:
                    found[-1][1] += line[1:]
                elif not line.startswith(("- ", "  ")):
                    kind = line
    return [(name, message.strip()) for name, message in found]


def exempt(name: str, message: str) -> list[str]:
    return [each for each in EXEMPT if re.search(each, f"{name}: {message}")]


def test_what_each_message_says() -> None:
    bad = {
        f"{name}: {message}\n  does not say {', '.join(faults(message))}"
        for name, message in messages()
        if faults(message) and not exempt(name, message)
    }
    counts = Counter(line.partition(":")[0] for line in bad)
    changed = {text for text, _ in counts.items() ^ OPEN.items()}
    # A text may have fewer, with its number in `OPEN`, and never more.
    assert not changed, "\n".join(x for x in bad if x.partition(":")[0] in changed)


def test_each_exemption_is_needed() -> None:
    used = {
        each
        for name, message in messages()
        if faults(message)
        for each in exempt(name, message)
    }
    assert used == set(EXEMPT)


@pytest.mark.parametrize(
    ("message", "lacks"),
    [
        ("trainer.epochs: must be at least 1, got 0", []),
        ("data.timestep: wrong", ["what it got", "what is expected", "what to do"]),
        ("the value 3 must be at least 4", ["the key, option or file"]),
        ("trainer: use_scheduler is true, but there is no section", ["what to do"]),
        ("loss: mse is wrong", ["what it got", "what is expected", "what to do"]),
    ],
)
def test_bad_messages_fail(message: str, lacks: list[str]) -> None:
    assert faults(message) == lacks
