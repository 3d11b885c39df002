"""A kept call is repeated whatever its number of rows: what it then launches and allocates is what the call itself would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton

from attnbench.kernels import hstu_attention
from attnbench.kernels.hstu.dense import calls as dense
from attnbench.kernels.hstu.dense.api import BackwardConfig, ColumnConfig, ForwardConfig, RowConfig
from attnbench.kernels.hstu.layer import api as layer
from attnbench.kernels.hstu.paged import calls as paged
from attnbench.kernels.hstu.paged.api import PagedConfig, hstu_paged_append, hstu_paged_attention
from attnbench.kernels.shared import kept

from .launches import Card, on_no_card
from .test_kept import ints, launches_of, rows, step

Given = dict[str, Any]
HOPPER = ForwardConfig(block_m=128, block_n=128, warps=8, stages=2, order="ws", silu="tanh")
PORTABLE = ForwardConfig(block_m=64, block_n=64, warps=4, stages=2, order="ahead", loads="tma")
ATOMIC = ColumnConfig(block_m=32, block_n=64, warps=4, stages=2, atomic=True, loads="tma")
WARPS = ColumnConfig(block_m=64, block_n=128, warps=8, stages=2, atomic=True, order="ws", split=False)
COLUMNS = ColumnConfig(block_m=32, block_n=64, warps=4, stages=2, loads="tma")
ROWS = RowConfig(block_m=64, block_n=64, warps=4, stages=2, loads="tma")


def dense_given(count: int, **changes: Any) -> Given:
    given = {name: rows(count, 4, 64) for name in "qkv"}
    return given | {"offsets": ints(0, 30, count), "max_seqlen": 4000, "num_targets": ints(1, 2)} | changes


def cached_given(count: int) -> Given:
    keys = {"k": rows(3 * count, 4, 64), "v": rows(3 * count, 4, 64), "offsets": ints(0, 90, 3 * count)}
    return dense_given(count, offsets_q=ints(0, 30, count), max_seqlen_q=70, forward=replace(HOPPER, parts=3), **keys)


def paged_given(count: int, **changes: Any) -> Given:
    given = {name: rows(count, 4, 64) for name in "qkv"} | {"pool": rows(8, 2, 32, 4, 64), "scaling_seqlen": 100}
    indices = ints(*(at % 8 for at in range(count // 8)))
    return given | {"step": step(offsets=ints(0, 30, count), indices=indices, max_new=4000)} | changes


def append_given(count: int) -> Given:
    given = paged_given(count)
    return {name: given[name] for name in ("k", "v", "pool", "step")}


def gradients(**given: Any) -> None:
    for name in "qkv":
        given[name] = given[name].detach().requires_grad_()
    out = hstu_attention(**given)
    torch.autograd.grad(out, [given[name] for name in "qkv"], rows(*out.shape))


def vector() -> torch.Tensor:
    return rows(1, 64)[0]


def gate_given(count: int) -> Given:
    wide = rows(count, 192)
    weights = {"weight": vector(), "bias": vector(), "eps": 1e-5}
    return {"a": rows(count, 64), "u": wide[:, 64:128], "whole": False, **weights}


def embed_given(count: int) -> Given:
    indices = {name: ints(*range(count)) for name in ("ids", "positions")}
    return indices | {"table": rows(999, 64), "places": rows(999, 64), "scale": 8.0}


hopper_pages = PagedConfig(block_m=128, block_n=32, warps=8, stages=2, order="ws")
CALLS: dict[str, tuple[Callable[..., Any], Callable[[int], Given]]] = {
    "dense-hopper": (hstu_attention, lambda count: dense_given(count, forward=HOPPER)),
    "dense-tma": (hstu_attention, lambda count: dense_given(count, forward=PORTABLE)),
    "dense-split": (hstu_attention, cached_given),
    "backward-atomic": (
        gradients,
        lambda count: dense_given(count, backward=BackwardConfig(columns=ATOMIC, rows=None)),
    ),
    "backward-hopper": (
        gradients,
        lambda count: dense_given(count, forward=HOPPER, backward=BackwardConfig(columns=WARPS, rows=None)),
    ),
    "backward-two": (
        gradients,
        lambda count: dense_given(count, backward=BackwardConfig(columns=COLUMNS, rows=ROWS), deterministic=True),
    ),
    "paged-hopper": (hstu_paged_attention, lambda count: paged_given(count, config=hopper_pages, splits=1)),
    "paged-split": (hstu_paged_attention, lambda count: paged_given(count, config=hopper_pages, splits=3)),
    "paged-portable-split": (hstu_paged_attention, lambda count: paged_given(count, config="m64n32w4s2", splits=2)),
    "append": (hstu_paged_append, append_given),
    "embed": (layer.embed, embed_given),
    "norm": (layer.norm, lambda count: {"x": rows(count, 64), "weight": vector(), "bias": vector(), "eps": 1e-5}),
    "silu": (layer.silu, lambda count: {"x": rows(count, 192)[:, 64:]}),
    "gate": (layer.gate, gate_given),
    "pick": (layer.pick, lambda count: {"x": rows(count, 64), "rows": ints(*range(count // 3)), "eps": 1e-6}),
}


def forget() -> None:
    for store in (dense.CALLS, paged._attentions, paged._appends, layer._calls):
        store._calls.clear()


def seen(card: Card, function: Callable[..., Any], given: Given) -> tuple[list[Any], list[Any]]:
    """What a call launches, and what it allocates."""
    card.held.clear()
    launched = launches_of(card, function, given)
    return launched, [(tuple(x.shape), x.stride(), x.dtype) for x in card.held]


@pytest.mark.parametrize("name", CALLS)
def test_other_rows_are_no_other_call(name):
    function, make = CALLS[name]
    with on_no_card() as card:
        for count in (64, 64):
            seen(card, function, make(count))
        for count in (66, 200, 977, 65):
            before = card.through_triton
            found = seen(card, function, make(count))
            assert card.through_triton == before, f"{count} rows went through Triton"
            forget()
            cold = launches_of(card, function, make(count))
            assert seen(card, function, make(count)) == found
            assert found[0] == cold != []
            forget()
            for _ in range(2):
                seen(card, function, make(64))


@pytest.mark.parametrize("name", ["dense-hopper", "dense-split", "backward-atomic", "paged-split", "norm", "pick"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_none_and_one_are_calls_of_their_own(name, count):
    """Kernels are compiled for a count of 1, and nothing is launched for none; odd counts stand for any."""
    function, make = CALLS[name]
    with on_no_card() as card:
        made = make(64)
        made |= {n: x[:count] for n, x in made.items() if isinstance(x, torch.Tensor) and x.dim() > 1 and len(x) == 64}
        truth = launches_of(card, function, made)
        forget()
        for _ in range(2):
            launches_of(card, function, make(64))
        assert [launches_of(card, function, made) for _ in range(2)] == [truth] * 2


def test_rows_that_differ_where_they_may_not_stay_refused():
    with on_no_card():
        for count in (64, 70):
            hstu_attention(**dense_given(count))
            layer.gate(**gate_given(count))
        with pytest.raises(ValueError, match=r"q\.shape\[0\]=71 does not fit; 70"):
            hstu_attention(**dense_given(70, q=rows(71, 4, 64)))
        with pytest.raises(ValueError, match=r"v\.shape\[0\]=69 does not fit; 70"):
            hstu_attention(**dense_given(70, v=rows(69, 4, 64)))
        with pytest.raises(ValueError, match=r"u\.shape=71 does not fit; 70"):
            layer.gate(**gate_given(70) | {"u": rows(71, 192)[:, 64:128]})
        with pytest.raises(ValueError, match=r"k\.shape=\(71, 4, 64\) does not fit; \(70, 4, 64\)"):
            hstu_paged_attention(**paged_given(70) | {"k": rows(71, 4, 64)})


def test_very_large_tensors_are_kept_by_their_rows(monkeypatch):
    x, y = rows(40, 8), rows(41, 8)
    assert kept.facts_of(x, jagged=(0,)) == kept.facts_of(y, jagged=(0,))
    assert kept.facts_of(x, jagged=(0,)) != kept.facts_of(rows(41, 9), jagged=(0,))
    assert kept.facts_of(x) != kept.facts_of(y)
    monkeypatch.setattr(kept, "MOST_ELEMENTS", 300)
    assert kept.facts_of(x, jagged=(0,)) != kept.facts_of(y, jagged=(0,))


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
def test_a_count_that_a_kernel_is_compiled_for_is_not_repeated(named):
    def run(kernel: Any, x: torch.Tensor, *, named: bool) -> tuple[()]:
        grid, count = (kept.rows_in(x).parts(16),), kept.rows_in(x) * 3
        if named:
            kept.launch(kernel, grid, x_ptr=x, count=count)
        else:
            kept.launch(kernel, grid, x, count)
        return ()

    with on_no_card() as card:
        launches = kept.Launches(lambda x: run(specialised, x, named=named))
        for count in (5, 16):
            launches(rows(count, 4))
        assert launches.fault == "count counts rows, and a kernel is compiled for what it is"
        launches = kept.Launches(lambda x: run(unspecialised, x, named=named))
        for count in (5, 5, 16, 33):
            launches(rows(count, 4))
        assert launches.fault is None
        found = [(grid, values[1]) for _, grid, values in card.launched[2:]]
        assert found == [((1, 1, 1), 15), ((1, 1, 1), 15), ((1, 1, 1), 48), ((3, 1, 1), 99)]
        assert {type(count) for _, count in found} == {int}


def test_rows_of_what_is_no_argument_are_not_repeated():
    def run(x: torch.Tensor) -> tuple[torch.Tensor]:
        other = torch.zeros(7)
        made = kept.empty((kept.rows_in(other),), x)
        kept.launch(unspecialised, (1,), made, 1)
        return (made,)

    with on_no_card():
        launches = kept.Launches(run)
        launches(rows(5, 4))
        assert launches.plan is None
        assert "none of the arguments" in str(launches.fault)


def test_a_number_of_rows_takes_part_in_nothing_that_would_be_forgotten():
    count = kept.rows_in(rows(5, 4))
    assert [int(count), int(count * 3), int((count * 3).parts(4)), int(count.parts(2).parts(2))] == [5, 15, 4, 2]
    for wrong in (lambda: count + 1, lambda: count // 2, lambda: -count, lambda: count.parts(2) * 2, lambda: count < 3):
        with pytest.raises(TypeError):
            wrong()
