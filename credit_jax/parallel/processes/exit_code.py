"""The exit code of a run that should be resumed."""

# EX_TEMPFAIL of sysexits.h: the run did not fail by itself; start it with --resume.
RESUME = 75
