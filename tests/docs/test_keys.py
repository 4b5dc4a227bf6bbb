"""The page of the keys of the YAML."""

import subprocess
import sys

from tools.key_pages import PAGE

_PRINT = "from tools.key_pages import keys_page; print(keys_page(), end='')"


def test_it_is_what_the_classes_say():
    """If not: `python -m tools.key_pages`."""
    # In a process of its own: other tests register objects of configs of theirs.
    command = [sys.executable, "-c", _PRINT]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    text = PAGE.read_text(encoding="utf-8")
    assert text == made.stdout
    for line in (
        "## trainer.scheduler (plateau)",
        "### bridgescaler_transform",
        "| `epochs` | integer |",
        "### almost-fair-crps",
        "### wxformer",
        "### gefs",
    ):
        assert line in text
