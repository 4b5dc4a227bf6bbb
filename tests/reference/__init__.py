"""CREDIT, run serially on the CPU: the oracle of the parity tests."""

from tests.reference.cases import CreditCase as CreditCase
from tests.reference.cases import build_credit as build_credit
from tests.reference.cases import credit_case as credit_case
from tests.reference.dataset import write_dataset as write_dataset
from tests.reference.training import GEN2_CONFIG as GEN2_CONFIG
from tests.reference.training import CreditRun as CreditRun
from tests.reference.training import credit_train as credit_train
