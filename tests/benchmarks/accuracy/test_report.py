"""Rows of the accuracy report."""

from benchmarks.accuracy.report import Line, cells


def test_errors_of_credit_are_told_without_folders_of_this_machine():
    line = Line("wxformer", "CREDIT", "float32", "OSError: no /home/me/a.b/c.nc | x\n")
    assert cells(line)[1] == "did not run: OSError: no c.nc / x"
    assert line.above() == {}
