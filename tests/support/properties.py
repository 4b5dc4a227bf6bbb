"""Settings of property tests: equal random values in every run, no database."""

from hypothesis import settings

fixed = settings(derandomize=True, database=None, deadline=None)
