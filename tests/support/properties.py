"""How tests draw values at random: the same ones in every run, none kept on disk."""

from hypothesis import settings

fixed = settings(derandomize=True, database=None, deadline=None)
