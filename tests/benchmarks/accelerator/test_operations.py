"""Operations of products and convolutions, compiled against traced."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.accelerator.operations import operations
from benchmarks.accelerator.program import parse
from credit_jax.models.flops import count_flops
from tests.benchmarks.accelerator.excerpt import EXCERPT


def _counted(text):
    program = parse(text)
    return sum(
        operations(program, where, instruction)
        for name, where in program.computations.items()
        for instruction in where.values()
        if instruction.opcode != "fusion"
    )


def test_a_convolution_of_a_library_and_its_gradients():
    program = parse(EXCERPT)
    entry = program.computations["main"]
    forward = 2 * 32 * 32 * 6 * 4 * 4 * 6
    for name in ("cudnn-conv.23", "cudnn-conv-bw-input.20", "cudnn-conv-bw-filter.22"):
        assert operations(program, entry, entry[name]) == forward, name


def test_a_product_of_a_library():
    program = parse(EXCERPT)
    body = program.computations["body"]
    assert operations(program, body, body["custom-call.15"]) == 2 * 512 * 32 * 32


def _product(a, b):
    return lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))))


def _convolution(x, kernel):
    return lax.conv_general_dilated(
        x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (_product, [(3, 5, 7), (3, 7, 11)]),
        (_convolution, [(2, 13, 15, 4), (3, 5, 4, 6)]),
        (
            jax.grad(lambda x, k: _convolution(x, k).sum(), 1),
            [(1, 9, 9, 4), (3, 3, 4, 6)],
        ),
    ],
)
def test_as_many_as_the_traced_function(function, shapes):
    arrays = [jnp.ones(shape) for shape in shapes]
    text = jax.jit(function).lower(*arrays).compile().as_text()
    assert _counted(text) == count_flops(function, *arrays)


def test_taps_on_padding_are_no_operations():
    text = """
ENTRY %main (x: f32[1,4,1], k: f32[3,1,1]) -> f32[1,4,1] {
  %x = f32[1,4,1]{2,1,0} parameter(0)
  %k = f32[3,1,1]{2,1,0} parameter(1)
  ROOT %c = f32[1,4,1]{2,1,0} convolution(%x, %k), window={size=3 pad=1_1}, \
dim_labels=b0f_0io->b0f
}
"""
    assert _counted(text) == 2 * (4 * 3 - 2)
