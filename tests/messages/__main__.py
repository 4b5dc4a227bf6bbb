"""Writes what the cases say to the text files: `python -m tests.messages [OPTIONS]`."""

import os
import sys
from pathlib import Path

import pytest

from tests.messages.engine import UPDATE

os.environ[UPDATE] = "1"
ENGINE = "from tests.messages.engine import"
words = ["-q", "-p", "no:cacheprovider", "-k", "test_what_is_said", *sys.argv[1:]]
if not any(word.endswith(".py") for word in words):
    files = Path(__file__).parents[1].rglob("test_*.py")
    words += [str(path) for path in files if ENGINE in path.read_text()]
sys.exit(pytest.main(words))
