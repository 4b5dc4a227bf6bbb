"""The tests; the jaxtyping hook finds its type checker here."""

from tests import typechecker as typechecker
