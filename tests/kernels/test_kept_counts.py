"""Counts of rows: what is made of them, compared with them and compiled for them comes out right for other rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from attnbench.kernels.shared import counts, kept

from .launches import on_no_card
from .test_kept import rows


def test_very_large_tensors_are_kept_by_their_rows(monkeypatch):
    x, y = rows(40, 8), rows(41, 8)
    assert kept.facts_of(x, jagged=(0,)) == kept.facts_of(y, jagged=(0,))
    assert kept.facts_of(x, jagged=(0,)) != kept.facts_of(rows(41, 9), jagged=(0,))
    assert kept.facts_of(x) != kept.facts_of(y)
    monkeypatch.setattr(kept, "MOST_ELEMENTS", 300)
    assert kept.facts_of(x, jagged=(0,)) != kept.facts_of(y, jagged=(0,))


def test_a_tensor_that_is_negated_when_it_is_read_is_no_key():
    with pytest.raises(ValueError, match="a tensor is lazily negated"):
        kept.facts_of(rows(4, 8), torch._neg_view(rows(4, 8)))


def test_which_arguments_have_equally_many_rows_is_told_apart():
    def facts(*counts: int) -> Any:
        return kept.facts_of(*(rows(count, 4) for count in counts), jagged=range(len(counts)))

    assert facts(5, 5, 7) == facts(6, 6, 9) != facts(5, 6, 7)
    assert facts(5, 7, 7) == facts(9, 3, 3) != facts(5, 7, 5)
    assert facts(5, 1) != facts(5, 2) == facts(6, 3)


@triton.jit
def specialised(x_ptr, count):
    """Launched on no card."""


@triton.jit(do_not_specialize=("count",))
def unspecialised(x_ptr, count):
    """Launched on no card."""


@pytest.mark.parametrize("named", [False, True], ids=["by place", "by name"])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a tuple"])
def test_a_count_that_a_kernel_is_compiled_for_is_repeated_where_it_is_alike(inside, named):
    def run(kernel: Any, x: torch.Tensor) -> tuple[()]:
        count = kept.rows_in(x) * 3
        given = {"x_ptr": x, "count": (5, (count, x)) if inside else count}
        kept.launch(kernel, (kept.rows_in(x).parts(16),), *() if named else given.values(), **given if named else {})
        return ()

    with on_no_card() as card:
        launches = kept.Launches(lambda x: run(specialised, x))
        through = []
        for count in (5, 16, 7, 32, 100, 48):
            launches(rows(count, 4))
            through.append(card.through_triton)
        assert through == [1, 2, 2, 2, 2, 2]
        assert launches.fault is None
        counts = [values[1][1][0] if inside else values[1] for _, _, values in card.launched]
        assert counts == [15, 48, 21, 96, 300, 144]
        launches = kept.Launches(lambda x: run(unspecialised, x))
        for count in (5, 5, 16, 33):
            launches(rows(count, 4))
        assert launches.fault is None
        assert card.through_triton == (4 if inside else 3)  # numbers in a tuple are always compiled for
        if not inside:
            assert [(grid, values[1]) for _, grid, values in card.launched[6:]] == [
                ((1, 1, 1), 15),
                ((1, 1, 1), 15),
                ((1, 1, 1), 48),
                ((3, 1, 1), 99),
            ]


def test_a_comparison_that_comes_out_otherwise_is_another_plan():
    """Both ways are kept, and no more than so many."""

    def run(x: torch.Tensor) -> tuple[torch.Tensor]:
        programs = min(4, kept.rows_in(x) // 8)
        made = kept.empty((programs, 3), x)
        if programs > 1:
            kept.launch(unspecialised, (1,), made, 1)
        kept.launch(unspecialised, (programs,), made, programs)
        return (made,)

    with on_no_card() as card:
        launches = kept.Launches(run)
        for count in (16, 24, 17, 15, 12, 400, 80, 9, 30):
            card.launched.clear()
            before, known = card.through_triton, len(launches.plans)
            (made,) = launches(rows(count, 4))
            programs = min(4, count // 8)
            assert made.shape == (programs, 3)
            assert [grid[0] for _, grid, _ in card.launched] == [1] * (programs > 1) + [programs]
            assert [values[1] for _, _, values in card.launched] == [1] * (programs > 1) + [programs]
            assert (card.through_triton > before) == (len(launches.plans) > known)
        assert len(launches.plans) == 3
        assert launches.fault is None


def test_of_plans_the_oldest_goes_first(monkeypatch):
    def run(x: torch.Tensor) -> tuple[()]:
        kept.launch(unspecialised, (1,), x, next(n for n in range(99) if kept.rows_in(x) == n))
        return ()

    monkeypatch.setattr(kept, "MOST_PLANS", 2)
    with on_no_card() as card:
        launches = kept.Launches(run)
        for count in (3, 4, 5, 5, 4, 3):
            launches(rows(count, 4))
        assert [values[1] for _, _, values in card.launched] == [3, 4, 5, 5, 4, 3]
        assert card.through_triton == 4
        assert len(launches.plans) == 2


def test_what_lies_inside_of_a_workspace_is_found_again():
    """A counter and the numbers behind it, cleared together; a second view of the same place is the same."""

    def run(x: torch.Tensor) -> tuple[torch.Tensor]:
        counters, made = kept.empty((4 + 6,), x, torch.int32), kept.empty((kept.rows_in(x), 4), x)
        kept.clear(counters)
        kept.launch(unspecialised, (1,), counters[4:], 1)
        kept.launch(unspecialised, (1,), counters[:1], 2)
        kept.launch(unspecialised, (1,), counters[4:], 3)
        return (made,)

    with on_no_card() as card:
        launches = kept.Launches(run)
        for _ in range(2):
            card.launched.clear()
            card.held.clear()
            launches(rows(5, 4))
        assert launches.fault is None
        behind, front, again = (values[0] for _, _, values in card.launched)
        assert behind == again == front + 16
        assert [x.data_ptr() for x in card.held if x.dtype == torch.int32] == [front]
        assert card.through_triton == 3

        def run_inside_of_rows(x: torch.Tensor) -> tuple[torch.Tensor]:
            made = kept.empty((kept.rows_in(x), 4), x)
            kept.launch(unspecialised, (1,), made[2:], 1)
            return (made,)

        launches = kept.Launches(run_inside_of_rows)
        launches(rows(5, 4))
        assert str(launches.fault).startswith("a tensor is none of the arguments")


def test_rows_of_what_is_no_argument_are_not_repeated():
    def run(x: torch.Tensor) -> tuple[torch.Tensor]:
        other = torch.zeros(7)
        made = kept.empty((kept.rows_in(other),), x)
        kept.launch(unspecialised, (1,), made, 1)
        return (made,)

    with on_no_card():
        launches = kept.Launches(run)
        launches(rows(5, 4))
        assert not launches.plans
        assert "none of the arguments" in str(launches.fault)


def test_a_number_of_rows_takes_part_in_nothing_that_would_be_forgotten():
    count = kept.rows_in(rows(5, 4))
    found = count * 3, (count * 3).parts(4), count.parts(2).parts(2), 2 + count - 1, -(-count // 2), 7 * count // 2
    assert list(map(int, found)) == [15, 4, 2, 6, 3, 17]
    for wrong in (lambda: count % 2, lambda: count / 2, lambda: 7 // count, lambda: count * 0.5, lambda: {count}):
        with pytest.raises(TypeError):
            wrong()


def test_strides_of_what_was_made_and_of_an_argument_follow():
    def run(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        made = kept.empty((2, kept.rows_in(x) // 4, 8), x)
        kept.launch(unspecialised, (1,), x, kept.stride_in(made, 0))
        kept.launch(unspecialised, (1,), x, kept.stride_in(y, 0))
        return (made,)

    with on_no_card() as card:
        launches = kept.Launches(run)
        for count in (8, 12, 40):
            (made,) = launches(rows(count, 4), rows(3, count))
            assert made.shape == (2, count // 4, 8)
            assert [values[1] for _, _, values in card.launched[-2:]] == [count // 4 * 8, count]
        assert card.through_triton == 2
        launches = kept.Launches(run)
        launches(rows(8, 4), rows(3, 8, gap=8))
        assert launches.fault == "a stride is of a tensor with gaps"


def test_rows_that_are_in_the_key_are_constants():
    def run(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        made = kept.empty((kept.rows_in(x), kept.rows_in(y)), x)
        kept.launch(unspecialised, (kept.rows_in(y),), made, kept.rows_in(x) * kept.rows_in(y))
        return (made,)

    with on_no_card() as card:
        launches = kept.Launches(run, (0,))
        for count in (5, 6, 32):
            (made,) = launches(rows(count, 4), rows(7, 4))
            assert made.shape == (count, 7)
        assert [(grid[0], values[1]) for _, grid, values in card.launched] == [(7, 35), (7, 42), (7, 224)]
        assert card.through_triton == 1
        (plan,) = launches.plans
        assert plan.counted == ((0, 0),)


def test_triton_checks_what_a_descriptor_has_beside_its_tensor_once(monkeypatch):
    checked: list[Any] = []
    check = TensorDescriptor.__post_init__
    monkeypatch.setattr(TensorDescriptor, "__post_init__", lambda made: (checked.append(made), check(made))[0])
    monkeypatch.setattr(counts, "_CHECKED", {})
    for length, dtype, tile in ((40, torch.bfloat16, 16), (41, torch.bfloat16, 16), (41, torch.float16, 16)) * 2:
        x = torch.zeros(length, 64, dtype=dtype)
        given = x, [length, 64], [64, 1], [tile, 64]
        found = counts.descriptor_of(TensorDescriptor, *given)
        before = len(checked)
        assert vars(found) == vars(TensorDescriptor(*given))
        assert found.base is x
        assert checked.pop() is not found
        assert len(checked) == before
    assert [made.base.dtype for made in checked] == [torch.bfloat16, torch.float16]
    assert not [made for made in counts._CHECKED.values() if made["base"] is not None]


@pytest.mark.parametrize(
    ("shape", "strides", "block", "said"),
    [
        ([40, 64], [64, 2], [16, 64], "Last dimension must be contiguous"),
        ([40, 64], [68, 1], [16, 64], "strides must be 16-byte aligned"),
        ([0, 64], [64, 1], [16, 64], "shape must be positive"),
        ([40, 64], [64, 64, 1], [16, 64], "rank mismatch"),
        ([40, 64], [64, 1], [16, 48], "power of 2"),
        (None, [64, 1], [16, 64], "base must be 16-byte aligned"),
    ],
)
def test_what_no_map_describes_is_refused_by_triton_though_its_tile_was_checked(shape, strides, block, said):
    x = torch.zeros(41 * 64, dtype=torch.bfloat16)
    assert counts.descriptor_of(TensorDescriptor, x, [40, 64], [64, 1], [16, 64]).base is x
    with pytest.raises((AssertionError, ValueError), match=said):
        counts.descriptor_of(TensorDescriptor, x if shape else x[1:], shape or [40, 64], strides, block)
