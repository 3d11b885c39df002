"""Aggregates on the Hopper machine: named fields, constants among them, methods; and what cannot be done with one."""

from typing import Any, NamedTuple

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.shared.hopper import Argument, Ring, aggregate

from .hopper_machine import Mistake, run

LANES = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@aggregate
class Span:
    """A range of numbers."""

    first: gl.tensor
    step: Argument
    COUNT: gl.constexpr

    @gluon.jit
    def tile(self):
        """The numbers."""
        return self.first + self.step * gl.arange(0, self.COUNT, LANES)

    @gluon.jit
    def after(self):
        """The range behind."""
        return Span(self.first + self.step * self.COUNT, self.step, self.COUNT)


@aggregate
class Row:
    """Where to write, and how often."""

    out_ptr: Argument
    span: Span
    TURNS: gl.constexpr


@gluon.jit
def write(row):
    """Write ranges one behind another; the constants are constants in here."""
    COUNT: gl.constexpr = row.span.COUNT
    span = row.span
    for turn in gl.static_range(row.TURNS):
        gl.store(row.out_ptr + turn * COUNT + gl.arange(0, COUNT, LANES), span.tile())
        span = span.after()


@gluon.jit
def ranges(out_ptr, first, step, COUNT: gl.constexpr, TURNS: gl.constexpr):
    write(Row(out_ptr, TURNS=TURNS, span=Span(first, step, COUNT)))


def test_fields_go_by_name_through_functions_methods_and_loops():
    out = torch.full((48,), -1, dtype=torch.int32)
    run(ranges, (1,), out, 5, 3, COUNT=16, TURNS=3)
    assert out.tolist() == list(range(5, 5 + 3 * 48, 3))


class Ends(NamedTuple):
    low: Any
    high: Any


@gluon.jit
def ends_of(count):
    return Ends(low=0, high=count)


@gluon.jit
def between(out_ptr, count, COUNT: gl.constexpr):
    ends = ends_of(count)
    write(Row(out_ptr, Span(ends.low, ends.high - ends.low, COUNT), TURNS=1))


def test_constants_in_a_named_tuple_are_values_of_the_run_where_it_is_assigned():
    out = torch.full((16,), -1, dtype=torch.int32)
    run(between, (1,), out, 3, COUNT=16)
    assert out.tolist() == list(range(0, 48, 3))


def test_annotations_are_types_in_the_order_of_the_fields_as_triton_36_asks():
    assert list(Ring.__annotations__) == ["tiles", "full", "empty", "STAGES", "COLUMNS"]
    assert Ring.__annotations__["STAGES"] is gl.constexpr
    assert list(Row.__annotations__) == ["out_ptr", "span", "TURNS"]


@gluon.jit
def misuse(out_ptr, first, HOW: gl.constexpr):
    if HOW == "run-time constant":
        span = Span(first, 1, first)
    elif HOW == "constant of the run":
        span = Span(0, 1, 16)
    elif HOW == "missing":
        span = Span(first, 1)
    elif HOW == "unknown":
        span = Span(first, 1, 16, LAST=first)
    elif HOW == "one too many":
        span = Span(first, 1, 16, first)
    else:
        span = Span(first, 1, 16)
        span.first = first + 1
    gl.store(out_ptr + gl.arange(0, 16, LANES), span.tile())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("run-time constant", r"Span\.COUNT is a constexpr, and was given a value of the run"),
        ("constant of the run", r"Span\.first is a value of the run, and was given the constant 0"),
        ("missing", "Span: missing a required argument: .COUNT."),
        ("unknown", "Span: got an unexpected keyword argument .LAST."),
        ("one too many", "Span: too many positional arguments"),
        ("assigned", r"Span\.first: fields of an aggregate are set when it is made"),
    ],
)
def test_what_triton_refuses_of_an_aggregate_is_a_mistake(how, words):
    with pytest.raises(Mistake, match=words):
        run(misuse, (1,), torch.zeros(16, dtype=torch.int32), 5, HOW=how)


@gluon.aggregate if hasattr(gluon, "aggregate") else aggregate
class Plain:
    """As Triton makes one by itself, with a constant that has a default."""

    first: gl.tensor
    COUNT: gl.constexpr = 16


@gluon.jit
def by_triton(out_ptr, first):
    plain = Plain(first)
    gl.store(out_ptr + gl.arange(0, plain.COUNT, LANES), plain.first + gl.arange(0, 16, LANES))


@pytest.mark.skipif(not hasattr(gluon, "aggregate"), reason="Triton 3.6 makes no constructor")
def test_an_aggregate_with_tritons_own_constructor_runs():
    out = torch.zeros(16, dtype=torch.int32)
    run(by_triton, (1,), out, 7)
    assert out.tolist() == list(range(7, 23))
