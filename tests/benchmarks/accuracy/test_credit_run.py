"""CREDIT's own trainer in the accuracy benchmark, on one process and on two."""

import numpy as np
import pytest

pytestmark = [pytest.mark.reference, pytest.mark.slow]


@pytest.fixture(scope="module")
def sides(credit, tmp_path_factory):
    from benchmarks.accuracy.case import case_config
    from benchmarks.accuracy.credit_run import CreditWay, credit_run, write_data

    folder = tmp_path_factory.mktemp("sides")
    config = case_config(32, 1, 1)
    write_data(folder, 32)
    return [credit_run(config, folder, CreditWay(domain=n)) for n in (1, 2)]


def test_credit_on_two_processes_starts_alike_and_predicts_something_else(sides):
    serial, split = sides
    assert serial.weights == split.weights
    np.testing.assert_array_equal(serial.x, split.x)
    assert serial.prediction.shape == split.prediction.shape == (1, 6, 32, 64)
    change = np.linalg.norm(split.prediction - serial.prediction)
    distance = change / np.linalg.norm(serial.prediction)
    print(f"CREDIT's domain=2 is {distance:.2f} away from CREDIT on one process")
    assert distance > 0.05


def test_a_grid_that_credit_refuses_is_an_error_in_its_words(credit, tmp_path):
    from benchmarks.accuracy.case import case_config
    from benchmarks.accuracy.credit_run import CreditWay, credit_run, write_data

    write_data(tmp_path, 31)
    said = credit_run(case_config(31, 1, 1), tmp_path, CreditWay(domain=2))
    assert "31" in said, said
    assert "divisible by domain_parallel_size" in said, said
