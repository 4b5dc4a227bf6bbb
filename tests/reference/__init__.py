"""CREDIT, run serially on the CPU: the oracle of the parity tests.

Names are imported when they are first used: the data set needs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "cases": ["CreditCase", "build_credit", "credit_case"],
        "dataset": ["write_dataset"],
        "training": ["GEN2_CONFIG", "CreditRun", "credit_train"],
    },
)
