"""Code in pages of docs/."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def code_blocks(page: str, language: str) -> list[str]:
    """Returns the code of every block of a page in a language."""
    text = (DOCS / f"{page}.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
