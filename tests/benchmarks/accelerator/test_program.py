"""Optimized programs read from their text."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.accelerator.program import Shape, parse, shapes_of
from tests.benchmarks.accelerator.excerpt import EXCERPT


def test_instructions_in_the_order_of_their_schedule():
    program = parse(EXCERPT)
    assert list(program.computations) == ["fused_slice", "fused_update", "body", "main"]
    entry = program.computations[program.entry]
    opcodes = [i.opcode for i in entry.values() if i.opcode != "parameter"]
    assert opcodes == [
        "custom-call",
        "custom-call",
        "while",
        "collective-permute",
        "custom-call",
    ]
    loop = entry["while.444"]
    assert (loop.called, loop.trips, loop.operands) == ("body", 5, ("p3",))
    convolution = entry["cudnn-conv.23"]
    assert convolution.operands == ("p0", "p1")
    assert convolution.op_name == "jit(step)/jvp(embedding)/conv_general_dilated"
    assert entry["p3"].shapes[2] == Shape("bf16", (5, 512, 32))
    assert entry["cudnn-conv-bw-filter.22"].is_root


def test_a_loop_of_unknown_length_is_an_error():
    text = EXCERPT.replace("known_trip_count", "something")
    loop = parse(text).computations["main"]["while.444"]
    with pytest.raises(ValueError, match="unknown length"):
        _ = loop.trips


def test_text_that_is_no_program():
    with pytest.raises(ValueError, match="no ENTRY"):
        parse("module @jit_step {}")


def test_layouts_of_a_tpu():
    shapes = shapes_of("(f32[8,128]{1,0:T(8,128)S(1)}, bf16[4,16]{1,0:T(8,128)(2,1)})")
    assert [s.size for s in shapes] == [4096, 128]
    assert [s.bytes for s in shapes] == [0, 128]


def test_a_program_compiled_here():
    compiled = jax.jit(lambda x: jnp.sin(x) @ x).lower(jnp.ones((8, 8))).compile()
    program = parse(str(compiled.as_text()))
    (root,) = (i for i in program.computations[program.entry].values() if i.is_root)
    assert root.shapes == (Shape("f32", (8, 8)),)
