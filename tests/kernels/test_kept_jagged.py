"""A kept call is repeated whatever its number of rows: what it then launches and allocates is what the call itself would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("triton")


from attnbench.kernels import flash_attention, flash_quant_attention, hstu_attention, hstu_bsa_attention
from attnbench.kernels.flash import calls as flash
from attnbench.kernels.flash.portable.forward import flash_forward
from attnbench.kernels.flash.quant import calls as quant
from attnbench.kernels.hstu.arguments import Parts
from attnbench.kernels.hstu.bsa import calls as bsa
from attnbench.kernels.hstu.bsa.hopper.attend_config import AttendConfig
from attnbench.kernels.hstu.bsa.hopper.select_config import SelectConfig
from attnbench.kernels.hstu.bsa.plan import BsaConfig
from attnbench.kernels.hstu.dense import calls as dense
from attnbench.kernels.hstu.dense.api import BackwardConfig, ColumnConfig, ForwardConfig, RowConfig
from attnbench.kernels.hstu.layer import api as layer
from attnbench.kernels.hstu.paged import calls as paged
from attnbench.kernels.hstu.paged.api import (
    PagedConfig,
    hstu_paged_append,
    hstu_paged_attention,
    hstu_paged_parts,
    hstu_paged_silu_append,
)

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


def packed_given(count: int, **changes: Any) -> Given:
    keys = 2 * count + 1
    given = {"q": rows(count, 4, 64), "k": rows(keys, 2, 64), "v": rows(keys, 2, 64), "max_seqlen_q": 40}
    offsets = {"cu_seqlens_q": ints(0, 30, count), "cu_seqlens_k": ints(0, 90, keys)}
    return given | offsets | {"max_seqlen_k": 64} | changes


def quant_given(count: int, **changes: Any) -> Given:
    given = packed_given(count, causal=True)
    return given | {"cu_seqlens_k": ints(0, 90, 2 * count + 1)} | changes


def bsa_given(count: int, **changes: Any) -> Given:
    given = {name: rows(count, 4, 64) for name in "qkv"} | {"gates": rows(count, 4, 2), "offsets": ints(0, 30, count)}
    return given | {"max_seqlen": 48, "block_size": 16, "block_counts": 2, "config": BsaConfig()} | changes


def bsa_cached_given(count: int) -> Given:
    keys = {"k": rows(3 * count, 4, 64), "v": rows(3 * count, 4, 64), "offsets": ints(0, 90, 3 * count)}
    return bsa_given(count, offsets_q=ints(0, 30, count), max_seqlen_q=40, num_targets=ints(1, 2), **keys)


def gradients_of(function: Callable[..., Any], **given: Any) -> None:
    for name in "qkv":
        given[name] = given[name].detach().requires_grad_()
    out = function(**given)
    out = out if isinstance(out, torch.Tensor) else out[0]
    torch.autograd.grad(out, [given[name] for name in "qkv"], rows(*out.shape))


gradients, packed_gradients, bsa_gradients = (
    partial(gradients_of, function) for function in (hstu_attention, flash_attention, hstu_bsa_attention)
)


def vector() -> torch.Tensor:
    return rows(1, 64)[0]


def gate_given(count: int) -> Given:
    wide = rows(count, 192)
    weights = {"weight": vector(), "bias": vector(), "eps": 1e-5}
    return {"a": rows(count, 64), "u": wide[:, 64:128], "whole": False, **weights}


def embed_given(count: int) -> Given:
    indices = {name: ints(*range(count)) for name in ("ids", "positions")}
    return indices | {"table": rows(999, 64), "places": rows(999, 64), "scale": 8.0}


BSA_HOPPER = BsaConfig(select=SelectConfig(), attend=AttendConfig())
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
    "paged-portable-tma": (hstu_paged_attention, lambda count: paged_given(count, config="m64n32w4s2-tma", splits=1)),
    "paged-parts": (hstu_paged_parts, lambda count: paged_given(count, config=hopper_pages, splits=3)),
    "append": (hstu_paged_append, append_given),
    "silu-append": (hstu_paged_silu_append, lambda count: append_given(count) | {"q": rows(count, 4, 64)}),
    "bsa": (hstu_bsa_attention, bsa_given),
    "bsa-shared": (hstu_bsa_attention, lambda count: bsa_given(count, selection="shared", pairs=True)),
    "bsa-passes": (hstu_bsa_attention, lambda count: bsa_given(count, config=BsaConfig(schedule="passes"))),
    "bsa-one-block": (hstu_bsa_attention, lambda count: bsa_given(count, block_counts=1)),
    "bsa-cached": (hstu_bsa_attention, bsa_cached_given),
    "bsa-hopper": (hstu_bsa_attention, lambda count: bsa_given(count, config=BSA_HOPPER)),
    "bsa-backward": (bsa_gradients, bsa_given),
    "bsa-backward-cached": (bsa_gradients, bsa_cached_given),
    "packed": (flash_attention, lambda count: packed_given(count, forward="m64n64w4s2")),
    "packed-tma": (flash_attention, lambda count: packed_given(count, forward="m64n64w4s2-tma", causal=True)),
    "packed-persistent": (
        flash_attention,
        lambda count: packed_given(count, forward="m64n64w4s2-persistent", window=(999999, 3)),
    ),
    "packed-hopper": (flash_attention, lambda count: packed_given(count, forward="m128n128w8s2-tma-ws-ticket")),
    "packed-decode": (flash_attention, lambda count: packed_given(count, forward="m16n16w4s3-decode-x3")),
    "packed-decode-shares": (flash_attention, lambda count: packed_given(count, forward="m16n16w4s3-decode-x8")),
    "quant": (flash_quant_attention, lambda count: quant_given(count, config="m64n64w4s2")),
    "quant-hopper": (flash_quant_attention, lambda count: quant_given(count, config="m192n128w12s4-ws")),
    "packed-backward": (
        packed_gradients,
        lambda count: packed_given(count, forward="m64n64w4s2", backward="b64x64w4s2-atomic"),
    ),
    "packed-backward-tma": (
        packed_gradients,
        lambda count: packed_given(count, forward="m64n64w4s2", backward="b64x64w4s2-atomic-tma"),
    ),
    "packed-backward-hopper": (
        packed_gradients,
        lambda count: packed_given(count, forward="m64n64w4s2", backward="b128x128w8s2-atomic-tma-ws"),
    ),
    "packed-backward-two": (
        packed_gradients,
        lambda count: packed_given(count, forward="m64n64w4s2", deterministic=True),
    ),
    "embed": (layer.embed, embed_given),
    "norm": (layer.norm, lambda count: {"x": rows(count, 64), "weight": vector(), "bias": vector(), "eps": 1e-5}),
    "silu": (layer.silu, lambda count: {"x": rows(count, 192)[:, 64:]}),
    "gate": (layer.gate, gate_given),
    "gate-parts": (
        layer.gate,
        lambda count: gate_given(count) | {"a": Parts(rows(count, 3, 2, 32, dtype=torch.float32), 0.5, True)},
    ),
    "pick": (layer.pick, lambda count: {"x": rows(count, 64), "rows": ints(*range(count // 3)), "eps": 1e-6}),
    "tower": (layer.tower, lambda count: {"x": rows(count, 64), "weight": rows(2, 10, 32), "bias": rows(2, 10)}),
}


WARM = {"packed-backward": (64, 72, 71), "packed-decode-shares": (64, 977)}
"""Of a backward: it is compiled for what divides the strides of its logarithms, three kinds of four heads; of shares:
fewer than the card's, and these."""


def forget() -> None:
    for store in (flash.CALLS, quant.CALLS, bsa.CALLS, dense.CALLS, paged._attentions, paged._appends, layer._calls):
        store._calls.clear()


def seen(card: Card, function: Callable[..., Any], given: Given) -> tuple[list[Any], list[Any]]:
    """What a call launches, and what it allocates."""
    card.held.clear()
    launched = launches_of(card, function, given)
    return launched, [(tuple(x.shape), x.stride(), x.dtype) for x in card.held]


@pytest.mark.parametrize("name", CALLS)
def test_other_rows_are_no_other_call(name):
    function, make = CALLS[name]
    warm = next((counts for start, counts in WARM.items() if name.startswith(start)), (64, 64))
    with on_no_card() as card:
        for count in warm:
            seen(card, function, make(count))
        for count in (66, 200, 977, 65, 2048):
            before = card.through_triton
            found = seen(card, function, make(count))
            assert card.through_triton == before, f"{count} rows went through Triton"
            forget()
            cold = launches_of(card, function, make(count))
            assert seen(card, function, make(count)) == found
            assert found[0] == cold != []
            forget()
            for count in warm:
                seen(card, function, make(count))


@pytest.mark.parametrize(
    "name",
    [
        *("dense-hopper", "dense-split", "backward-atomic", "paged-split", "norm", "pick"),
        *("packed", "packed-hopper", "packed-decode", "packed-backward-tma", "bsa", "bsa-hopper", "bsa-backward"),
    ],
)
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
        found = [launches_of(card, function, made) for _ in range(2)]
        if name.startswith("bsa"):  # of a workspace of no bytes the address is anything
            found, truth = [[launch[:2] for launch in one] for one in found], [launch[:2] for launch in truth]
        assert found == [truth] * 2


def test_bounds_of_packed_sequences_are_kept_by_whole_tiles():
    """The bound that a caller gives may be the longest sequence, or far too large."""

    def given(count: int, bound: int) -> Given:
        offsets = {"cu_seqlens_q": ints(0, count), "max_seqlen_q": bound, "cu_seqlens_k": None, "max_seqlen_k": None}
        return packed_given(count, k=rows(count, 4, 64), v=rows(count, 4, 64), **offsets, forward="m64n64w4s2")

    with on_no_card() as card:
        launches_of(card, flash_attention, given(1030, 1030))
        for count, bound in ((1100, 1100), (1152, 99999), (1025, 1152), (1152, 1152)):
            ((_, grid, _),) = launches_of(card, flash_attention, given(count, bound))
            assert grid[0] == 4 * 1152 // 64
        assert card.through_triton == 1
        for count, bound in ((1153, 1153), (1030, 1024), (2000, 1030), (100, 100), (101, 101), (100, 9999)):
            before = card.through_triton
            ((_, grid, _),) = launches_of(card, flash_attention, given(count, bound))
            least = -(-min(count, bound) // 64)
            assert 4 * least <= grid[0] <= 4 * (least + 1)
            assert (card.through_triton == before) == ((count, bound) in {(2000, 1030), (100, 9999)})


def test_a_window_is_as_wide_as_the_longest_that_its_call_is_kept_for():
    with on_no_card() as card:
        for count in (1030, 1152):
            given = packed_given(count, window=(2000, 1100), max_seqlen_q=9999, max_seqlen_k=9999)
            ((_, _, values),) = launches_of(card, flash_attention, given | {"forward": "m64n64w4s2"})
            assert [values[flash_forward.arg_names.index(name)] for name in ("left", "right")] == [2000, 1100]


def test_a_bound_under_the_longest_sequence_is_refused_for_what_it_was_given_as():
    given = packed_given(1030, max_seqlen_q=999, max_seqlen_k=3000, cu_seqlens_k=ints(0, 30, 2061), validate=True)
    with (
        on_no_card(),
        pytest.raises(ValueError, match=r"max_seqlen_q=999 is below the rows of a sequence; at least 1000"),
    ):
        flash_attention(**given)


def test_an_append_is_kept_by_its_tiles_and_wrong_bounds_stay_refused():
    """Which tokens are cached is no affair of its launch: a step whose histories are longer repeats it."""
    given = append_given(64)
    with on_no_card() as card:
        truth = launches_of(card, hstu_paged_append, given)
        before = card.through_triton
        for max_cached, max_new in ((5000, 4000), (0, 4000), (7, 3999), (7, 3993)):
            bounds = {"max_cached": max_cached, "max_new": max_new}
            assert launches_of(card, hstu_paged_append, given | {"step": replace(given["step"], **bounds)}) == truth
        assert card.through_triton == before
        assert launches_of(card, hstu_paged_append, given | {"step": replace(given["step"], max_new=4001)}) != truth
        for wrong in (-1, 2.0, True, 2**24 + 1):
            for name in ("max_cached", "max_new"):
                with pytest.raises(ValueError, match=f"hstu_paged_append: {name}={wrong} cannot be used"):
                    hstu_paged_append(**given | {"step": replace(given["step"], **{name: wrong})})


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


@pytest.mark.parametrize("name", ["packed", "bsa", "quant"])
def test_threads_may_have_other_rows_of_one_kept_call(name):
    """Two of them call at once, each with totals of its own, and each call is launched for its own."""
    function, make = CALLS[name]
    totals = {0: (64, 200, 66), 1: (977, 65, 300)}
    with on_no_card() as card:
        wanted, given = {}, {count: make(count) for many in totals.values() for count in many}
        for one in given.values():
            wanted[one["q"].data_ptr()] = [launch[1] for launch in launches_of(card, function, one)]
        card.launched.clear()
        failed: list[BaseException] = []
        together = threading.Barrier(2)

        def work(which: int) -> None:
            try:
                together.wait()
                for _ in range(30):
                    for count in totals[which]:
                        function(**given[count])
            except BaseException as why:
                failed.append(why)

        threads = [threading.Thread(target=work, args=(which,)) for which in totals]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        seen: dict[int, set[tuple[int, ...]]] = {}
        for _, grid, values in card.launched:
            first = values[0][0] if isinstance(values[0], tuple) else values[0]
            if first in wanted:
                seen.setdefault(first, set()).add(grid)
        assert seen.keys() == wanted.keys()
        assert all(grids <= set(wanted[at]) for at, grids in seen.items())
