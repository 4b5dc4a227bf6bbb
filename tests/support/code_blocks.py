"""Code in pages of docs/."""

from __future__ import annotations

import re


def code_blocks(text: str, language: str) -> list[str]:
    """Returns the code of every block of a Markdown text in a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
