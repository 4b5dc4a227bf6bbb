"""The exit code of a run that is to be resumed."""

# EX_TEMPFAIL of sysexits.h: nothing is wrong with the run, start it again (--resume).
RESUME = 75
