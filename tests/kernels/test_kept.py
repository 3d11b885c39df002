"""What a call computes is kept, and never used for a call that differs: on no card, by what the launcher would get."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
from triton import knobs

from attnbench.kernels import (
    flash_attention,
    flash_quant_attention,
    flash_sparse_attention,
    flash_sparse_quant_attention,
    hstu_attention,
    hstu_bsa_attention,
)
from attnbench.kernels.flash import calls as flash
from attnbench.kernels.flash.quant import calls as quant
from attnbench.kernels.flash.sparse import calls as sparse
from attnbench.kernels.flash.sparse import lists as sparse_lists
from attnbench.kernels.flash.sparse_quant import calls as sparse_quant
from attnbench.kernels.hstu.bsa import calls as bsa
from attnbench.kernels.hstu.bsa.plan import BsaConfig
from attnbench.kernels.hstu.dense import calls as dense
from attnbench.kernels.hstu.dense.api import ForwardConfig
from attnbench.kernels.hstu.paged import calls as paged
from attnbench.kernels.hstu.paged.api import (
    PagedConfig,
    Step,
    hstu_paged_append,
    hstu_paged_attention,
    hstu_paged_parts,
    hstu_paged_silu_append,
)
from attnbench.kernels.shared import kept
from attnbench.kernels.shared.card import Card as Properties
from attnbench.kernels.shared.card import stood_in_for

from .aot import OLDEST
from .launches import Card, on_no_card

ROOT = Path(__file__).resolve().parents[2]
bf16, fp16 = torch.bfloat16, torch.float16
H200 = Properties((9, 0), 132)


def rows(*shape: int, dtype: torch.dtype = bf16, offset: int = 0, gap: int = 0) -> torch.Tensor:
    """A tensor that begins `offset` elements behind an aligned address, its rows `gap` elements further apart."""
    *outer, dims = shape
    count = dims + gap
    for extent in outer:
        count *= extent
    whole = torch.zeros(offset + count * (1 + gap), dtype=dtype)
    strides = [dims + gap]
    for extent in reversed(outer[1:]):
        strides.insert(0, strides[0] * extent)
    return torch.as_strided(whole, shape, [*strides, 1], offset)


def ints(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def flash_given() -> dict[str, Any]:
    return {
        "q": rows(2, 64, 4, 64),
        "k": rows(2, 96, 4, 64),
        "v": rows(2, 96, 4, 64),
        "forward": "m128n128w8s2-tma-ws-ticket",
    }


def packed_given() -> dict[str, Any]:
    numbers = {"cu_seqlens_q": ints(0, 30, 64), "cu_seqlens_k": ints(0, 50, 96), "max_seqlen_q": 34, "max_seqlen_k": 50}
    return {"q": rows(64, 4, 64), "k": rows(96, 4, 64), "v": rows(96, 4, 64), "forward": "m64n64w4s2"} | numbers


def decode_given() -> dict[str, Any]:
    """Of few queries, which is told by their number alone."""
    return {"q": rows(2, 2, 4, 64), "k": rows(2, 600, 2, 64), "v": rows(2, 600, 2, 64)}


def dense_given() -> dict[str, Any]:
    given = {"q": rows(64, 4, 64), "k": rows(64, 4, 64), "v": rows(64, 4, 64), "offsets": ints(0, 30, 64)}
    hopper = ForwardConfig(block_m=128, block_n=128, warps=8, stages=2, order="ws", silu="tanh")
    return given | {"max_seqlen": 34, "num_targets": ints(1, 2), "forward": hopper}


def bsa_given() -> dict[str, Any]:
    given = {"q": rows(64, 4, 64), "k": rows(64, 4, 64), "v": rows(64, 4, 64), "offsets": ints(0, 30, 64)}
    return given | {
        "max_seqlen": 48,
        "gates": rows(64, 4, 2),
        "block_size": 16,
        "block_counts": 2,
        "config": BsaConfig(),
    }


def step(**changes: Any) -> Step:
    given: dict[str, Any] = {"offsets": ints(0, 30, 64), "cached": ints(32, 20), "indptr": ints(0, 2, 4)}
    given |= {"indices": ints(0, 1, 2, 3), "num_targets": ints(1, 2), "max_new": 34, "max_cached": 32}
    return Step(**given | changes)


def paged_given() -> dict[str, Any]:
    hopper = PagedConfig(block_m=128, block_n=32, warps=8, stages=2, order="ws")
    given = {"q": rows(64, 4, 64), "k": rows(64, 4, 64), "v": rows(64, 4, 64), "pool": rows(8, 2, 32, 4, 64)}
    return given | {"step": step(), "scaling_seqlen": 100, "config": hopper}


def append_given() -> dict[str, Any]:
    return {"k": rows(64, 4, 64), "v": rows(64, 4, 64), "pool": rows(8, 2, 32, 4, 64), "step": step()}


def quant_given() -> dict[str, Any]:
    given = packed_given() | {"config": "m192n128w12s4-ws"}
    del given["forward"]
    return given


def sparse_given(config: str = "m128n64w8s2") -> dict[str, Any]:
    given = {"q": rows(2, 200, 4, 64), "k": rows(2, 300, 2, 64), "v": rows(2, 300, 2, 64), "block": (128, 64)}
    return given | {"block_map": torch.ones(2, 4, 2, 5, dtype=torch.bool), "config": config}


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = {
    "flash": (flash_attention, flash_given),
    "packed": (flash_attention, packed_given),
    "decode": (flash_attention, decode_given),
    "dense": (hstu_attention, dense_given),
    "bsa": (hstu_bsa_attention, bsa_given),
    "paged": (hstu_paged_attention, paged_given),
    "paged-parts": (hstu_paged_parts, lambda: paged_given() | {"splits": 3}),
    "append": (hstu_paged_append, append_given),
    "silu-append": (hstu_paged_silu_append, lambda: append_given() | {"q": rows(64, 4, 64)}),
    "quant": (flash_quant_attention, quant_given),
    "sparse": (flash_sparse_attention, sparse_given),
    "sparse-quant": (flash_sparse_quant_attention, lambda: sparse_given("m64n64w4s2")),
}
HALF = ForwardConfig(block_m=128, block_n=64, warps=8, stages=2, order="ws", silu="tanh")
CHANGES: dict[str, list[dict[str, Any]]] = {
    "flash": [
        {"q": rows(2, 65, 4, 64)},
        {"q": rows(2, 64, 4, 64, gap=64)},
        {"q": rows(2, 64, 4, 64, dtype=fp16), "k": rows(2, 96, 4, 64, dtype=fp16), "v": rows(2, 96, 4, 64, dtype=fp16)},
        {"k": rows(2, 96, 2, 64), "v": rows(2, 96, 2, 64)},
        {"v": rows(2, 96, 4, 40)},
        {"causal": True},
        {"window": (5, 3)},
        {"window": (5, -1)},
        {"scale": 0.3},
        {"forward": "m128n64w8s2-tma-ws-ticket"},
        {"forward": "m64n64w4s2", "q": rows(2, 64, 4, 64, offset=1)},
        {"forward": "m64n64w4s2-tma", "k": rows(2, 96, 4, 64, offset=1)},
        {"deterministic": True},
    ],
    "packed": [
        {"cu_seqlens_q": ints(0, 20, 30, 64), "cu_seqlens_k": ints(0, 50, 60, 96)},
        {"max_seqlen_q": 40},
        {"max_seqlen_k": 96},
        {"k": rows(64, 4, 64), "v": rows(64, 4, 64), "cu_seqlens_k": None, "max_seqlen_k": None},
        {"q": rows(64, 4, 64, offset=1)},
        {"k": rows(96, 4, 64, offset=4)},
        {"causal": True},
    ],
    "decode": [
        {"q": rows(2, 3, 4, 64)},
        {"q": rows(2, 70, 4, 64)},
        {"k": rows(2, 601, 2, 64), "v": rows(2, 601, 2, 64)},
        {"k": rows(2, 500, 2, 64), "v": rows(2, 500, 2, 64)},
        {"k": rows(2, 600, 4, 64), "v": rows(2, 600, 4, 64)},
        {"k": rows(2, 600, 2, 64, offset=1)},
        {"causal": True},
        {"window": (70, 3)},
        {"forward": "m16n64w4s3-decode-x3"},
        {"forward": "m64n64w4s3-tma-decode"},
    ],
    "dense": [
        {"max_seqlen": 40},
        {"max_seqlen_q": 200},
        {"alpha": 0.5},
        {"scaling_seqlen": 77},
        {"causal": False},
        {"contextual_len": 3},
        {"max_attn_len": 9},
        {"offsets": ints(0, 30, 64, dtype=torch.int64)},
        {"offsets": ints(0, 30, 40, 64), "num_targets": ints(1, 2, 1)},
        {"num_targets": None},
        {"offsets_q": ints(0, 30, 64)},
        {"forward": HALF},
        {"q": rows(64, 4, 64, gap=64)},
        {"deterministic": True},
    ],
    "bsa": [
        {"max_seqlen": 64},
        {"max_seqlen_q": 50},
        {"block_size": 32, "block_counts": 2},
        {"block_counts": 3},
        {"local_window": 7, "gates": rows(64, 4, 3)},
        {"selection": "shared"},
        {"pairs": True},
        {"gates": None},
        {"alpha": 0.5},
        {"scaling_seqlen": 77},
        {"num_targets": ints(1, 2)},
        {"config": BsaConfig(schedule="passes")},
        {"q": rows(64, 4, 64, offset=1)},
    ],
    "paged": [
        {"step": step(max_new=200)},
        {"step": step(max_cached=640000)},
        {"step": step(num_targets=None)},
        {"scaling_seqlen": 50},
        {"alpha": 0.5},
        {"splits": 2},
        {"config": "m64n32w4s2"},
        {"pool": rows(9, 2, 32, 4, 64)},
    ],
    "quant": [
        {"max_seqlen_q": 200},
        {"max_seqlen_k": 60},
        {"cu_seqlens_q": ints(0, 20, 30, 64), "cu_seqlens_k": ints(0, 50, 60, 96)},
        {"causal": True},
        {"scale": 0.3},
        {"q": rows(64, 4, 64, gap=64)},
        {"config": "m64n64w4s2"},
    ],
    "sparse": [
        {"causal": True},
        {"scale": 0.3},
        {"block": (64, 64), "block_map": torch.ones(2, 4, 4, 5, dtype=torch.bool), "config": "m64n64w4s2"},
        {"k": rows(2, 300, 4, 64), "v": rows(2, 300, 4, 64)},
        {"v": rows(2, 300, 2, 64, gap=64)},
        {"config": "m64n64w4s2"},
        {"block_map": torch.ones(2, 4, 5, 2, dtype=torch.bool).mT},
    ],
    "sparse-quant": [{"causal": True}, {"scale": 0.3}, {"config": "m128n64w8s3"}],
    "paged-parts": [{"splits": 1}, {"splits": 4}, {"alpha": 0.3}, {"config": "m64n32w4s2"}],
    "silu-append": [{"step": step(max_new=64)}, {"step": step(num_targets=None)}, {"q": rows(64, 4, 64, offset=1)}],
    "append": [{"step": step(max_new=64)}, {"step": step(num_targets=None)}, {"k": rows(64, 4, 64, offset=1)}],
}


SAME = ("deterministic", "pool")
"What changes nothing of a forward's launches: what is of the backward alone, and the number of pages."


def tensors_of(given: dict[str, Any]) -> dict[int, str]:
    """Names of the tensors given, by address."""
    found = {}
    for name, value in given.items():
        fields = {n: getattr(value, n) for n in Step.__slots__} if isinstance(value, Step) else {"": value}
        found |= {x.data_ptr(): name + field for field, x in fields.items() if isinstance(x, torch.Tensor)}
    return found


def launches_of(card: Card, function: Callable[..., Any], given: dict[str, Any]) -> list[Any]:
    """What a call launches, its tensors by name and what it allocates by order."""
    card.launched.clear()
    function(**given)
    names = tensors_of(given)

    def named(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(named, value))
        if type(value) is int and value > 2**40:
            return names.setdefault(value, f"made {len(names)}")
        return value

    return [(kernel, grid, named(tuple(values))) for kernel, grid, values in card.launched]


def forget() -> None:
    for module, names in (
        (flash, ["CALLS"]),
        (quant, ["CALLS"]),
        (sparse, ["CALLS"]),
        (sparse_lists, ["_calls"]),
        (sparse_quant, ["CALLS"]),
        (dense, ["CALLS"]),
        (bsa, ["CALLS"]),
        (paged, ["_attentions", "_appends"]),
    ):
        for name in names:
            getattr(module, name)._calls.clear()


@pytest.mark.parametrize("nested", [True, False], ids=["triton-3.9", "triton-3.6"])
@pytest.mark.parametrize("name", CALLS)
def test_a_warm_call_launches_what_the_first_did_on_its_own_tensors(name, nested):
    function, make = CALLS[name]
    with on_no_card(nested=nested) as card:
        first = launches_of(card, function, make())
        assert card.through_triton == len(first) > 0
        before = make()
        warm = launches_of(card, function, make())  # the tensors of `before` are alive: others
        assert card.through_triton == len(first), "a warm call went through Triton"
        assert warm == first
        del before


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param(name, one, id=f"{name}-{'-'.join(one)}-{at}")
        for name, many in CHANGES.items()
        for at, one in enumerate(many)
    ],
)
def test_what_is_kept_is_not_used_for_a_call_that_differs(name, changes):
    function, make = CALLS[name]
    with on_no_card() as card:
        truth = launches_of(card, function, make() | changes)
        forget()
        base = [launches_of(card, function, make()) for _ in range(2)][-1]
        assert [launches_of(card, function, make() | changes) for _ in range(3)] == [truth] * 3
        assert launches_of(card, function, make()) == base
        assert (truth == base) is (next(iter(changes)) in SAME)


@pytest.mark.parametrize(
    ("name", "good", "bad", "words"),
    [
        ("packed", {"max_seqlen_q": 1}, {"max_seqlen_q": True}, "max_seqlen_q=True cannot be used"),
        ("packed", {"window": (1, 0)}, {"window": (True, 0)}, "window=.True, 0. is not a window"),
        ("dense", {"contextual_len": 1}, {"contextual_len": True}, "contextual_len=True cannot be used"),
        ("dense", {"causal": True}, {"causal": 1}, "causal=1 cannot be used"),
        ("bsa", {"block_counts": 1}, {"block_counts": True}, "block_counts=True is out of range"),
        ("paged", {"splits": 1}, {"splits": True}, "splits=True cannot be used"),
        ("dense", {}, {"q": None}, "q=None is of type NoneType"),
        ("flash", {}, {"window": ([], 0)}, "is not a window"),
        ("flash", {}, {"window": 5}, "window=5 is not a window"),
    ],
)
def test_what_is_refused_stays_refused_when_its_equal_is_kept(name, good, bad, words):
    function, make = CALLS[name]
    with on_no_card():
        for _ in range(2):
            function(**make() | good)
        with pytest.raises(ValueError, match=words):
            function(**make() | bad)


def test_packed_keys_that_are_values_too_are_repeated_by_descriptors():
    """A call whose tensors share an address is no reason to launch all later ones of its key through Triton."""
    with on_no_card() as card:
        given = packed_given() | {"forward": "m64n64w4s2-tma"}
        flash_attention(**given | {"k": given["v"]})
        flash_attention(**given)
        warm = card.through_triton
        assert warm
        flash_attention(**given)
        assert card.through_triton == warm


@pytest.mark.parametrize("name", ["flash", "dense", "bsa"])
def test_an_output_whose_gradient_nobody_gives_has_none(name):
    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    function, make = CALLS[name]
    with on_no_card():
        given = make()
        q = given["q"] = given["q"].detach().requires_grad_()
        out = function(**given)
        Stop.apply(out if isinstance(out, torch.Tensor) else out[0]).sum().backward()
        # dense is given zeros for it, and launches; no kernel runs here that would write its gradient.
        assert (q.grad is None) == (name != "dense")


@pytest.mark.parametrize(("name", "offsets"), [("packed", "cu_seqlens_q"), ("dense", "offsets"), ("bsa", "offsets")])
def test_offsets_that_changed_before_the_backward_are_refused(name, offsets):
    function, make = CALLS[name]
    with on_no_card():
        given = make()
        given["q"] = given["q"].detach().requires_grad_()
        out = function(**given)
        given[offsets][1] += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (out if isinstance(out, torch.Tensor) else out[0]).sum().backward()


def test_a_tensor_without_memory_on_its_card_is_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(4, 8, device="cuda")
    with (
        pytest.warns(match="data pointer"),
        pytest.raises(ValueError, match=r"a tensor of shape \(4, 8\) has no memory"),
    ):
        kept.facts_of(fake)


def test_what_is_kept_already_drops_nothing(monkeypatch):
    monkeypatch.setattr(kept, "MOST_KEPT", 2)
    calls = kept.Kept()
    for key in ("a", "b", "b", "b"):
        calls.keep(key, key)
    assert calls.get("a") == "a"


def test_the_calls_in_use_outlive_any_number_of_others(monkeypatch):
    monkeypatch.setattr(kept, "MOST_KEPT", 8)
    calls = kept.Kept()
    calls.keep("in use", "in use")
    for number in range(100):
        calls.keep(number, str(number))
        if number % 4 == 3:
            assert calls.get("in use") == "in use"
        assert calls.get(number) == str(number)
        assert len(calls) <= 8
    assert [number for number in range(100) if calls.get(number)][-3:] == [97, 98, 99]
    assert not any(map(calls.get, range(90)))
    for number in range(100, 108):  # twice as many new ones as a half has room for, and not used once
        calls.keep(number, str(number))
    assert calls.get("in use") is None


def test_a_call_that_comes_back_is_the_one_that_was_kept(monkeypatch):
    monkeypatch.setattr(kept, "MOST_KEPT", 4)
    calls = kept.Kept()
    first = calls.keep("a", object())
    for key in "bc":
        calls.keep(key, object())
    assert calls.keep("a", object()) is first
    assert calls.get("a") is first
    assert calls.get([]) is None
    assert calls.get("never") is None


def test_a_million_shapes_take_no_more_memory_than_the_calls_that_are_kept():
    """Of what is kept, the number alone: a call costs as much memory whatever came before it."""
    calls = kept.Kept()
    for number in range(1_000_000):
        calls.keep(number, number)
    assert len(calls) <= kept.MOST_KEPT
    assert calls.get(999_999) == 999_999


def test_threads_that_keep_at_once_get_the_same_call(monkeypatch):
    monkeypatch.setattr(kept, "MOST_KEPT", 16)
    calls, found = kept.Kept(), []

    def work() -> None:
        for number in range(3000):
            found.append((number, calls.get(number % 7) or calls.keep(number % 7, f"{number % 7}")))
            calls.keep(-number, str(-number))
            assert len(calls) <= 16

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 12_000
    assert all(call == str(number % 7) for number, call in found)


def test_one_tensor_given_twice_is_two_arguments_later():
    with on_no_card() as card:
        x = rows(2, 96, 4, 64)
        for _ in range(2):
            flash_attention(x, x, x, forward="m64n64w4s2")
        given = {"q": rows(2, 96, 4, 64), "k": rows(2, 96, 4, 64), "v": rows(2, 96, 4, 64), "forward": "m64n64w4s2"}
        warm = launches_of(card, flash_attention, given)
        forget()
        assert warm == launches_of(card, flash_attention, given)


@pytest.mark.parametrize("name", ["flash", "decode", "dense", "bsa"])
def test_a_backward_is_kept_too(name):
    function, make = CALLS[name]

    def backward(**given):
        for x in ("q", "k", "v"):
            given[x] = given[x].detach().requires_grad_()
        out = function(**given)
        out = out if isinstance(out, torch.Tensor) else out[0]
        out.backward(dout)

    with on_no_card() as card:
        given = make()
        dout = rows(*given["q"].shape)
        first = launches_of(card, backward, given)
        through = card.through_triton
        assert launches_of(card, backward, given) == first
        assert card.through_triton == through
        dout = dout[..., :1].expand(dout.shape)  # a gradient that no kernel reads as it lies
        assert len(launches_of(card, backward, given)) == len(first)
        assert card.through_triton > through


def python_calls(function: Callable[..., Any], **given: Any) -> list[str]:
    """Functions written in Python that a call calls, those of torch and of the standard library too."""
    counted: list[str] = []

    def count(frame, event, _argument):
        name = frame.f_code.co_filename
        if event == "call" and name != __file__ and "launches.py" not in name:
            counted.append(f"{Path(name).name}:{frame.f_code.co_qualname}")

    sys.setprofile(count)
    try:
        function(**given)
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize(("name", "most"), [("flash", 30), ("decode", 30), ("dense", 30), ("paged", 45), ("bsa", 60)])
def test_a_warm_call_makes_few_calls_of_python(name, most):
    function, make = CALLS[name]
    with on_no_card() as card:
        given = make()
        for _ in range(2):
            function(**given)
        before = card.through_triton
        counted = python_calls(function, **given)
        assert card.through_triton == before
        assert len(counted) <= most, counted


NEW_SHAPES: dict[str, Callable[[int], Any]] = {
    "flash": lambda rows_: flash_attention(*[rows(1, rows_, 16, 128)] * 3, causal=True),
    "flash, named": lambda rows_: flash_attention(*[rows(1, rows_, 4, 64)] * 3, forward="m128n128w8s2-tma-ws-ticket"),
    "flash, portable": lambda rows_: flash_attention(*[rows(1, rows_, 4, 64)] * 3, forward="m64n64w4s2-tma"),
    "dense": lambda rows_: hstu_attention(*[rows(rows_, 4, 64)] * 3, ints(0, rows_), rows_),
    "bsa": lambda rows_: hstu_bsa_attention(*[rows(rows_, 4, 128)] * 3, ints(0, rows_), rows_, gates=rows(rows_, 4, 2)),
    "flash, differentiated": lambda rows_: differentiated(
        lambda x: flash_attention(x, x, x, causal=True)[0], 1, rows_, 16, 128
    ),
    "dense, differentiated": lambda rows_: differentiated(
        lambda x: hstu_attention(x, x, x, ints(0, rows_), rows_), rows_, 4, 128
    ),
    "bsa, differentiated": lambda rows_: differentiated(
        lambda x: hstu_bsa_attention(x, x, x, ints(0, rows_), rows_, gates=rows(rows_, 4, 2))[0], rows_, 4, 128
    ),
}


def differentiated(function: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> Any:
    x = rows(*shape).requires_grad_()
    return torch.autograd.grad(function(x), x, rows(*shape))


@pytest.mark.parametrize(
    ("name", "launches", "most"),
    [
        ("flash", 1, 235),
        ("flash, named", 1, 245),
        ("flash, portable", 1, 395),
        ("dense", 1, 175),
        ("bsa", 6, 575),
        ("flash, differentiated", 4, 660),
        ("dense, differentiated", 3, 430),
        ("bsa, differentiated", 11, 1000),
    ],
)
def test_a_new_shape_makes_few_calls_of_python(name, launches, most):
    """One of which nothing is compiled anew: it is checked, configured, launched and recorded, here without Triton."""
    with on_no_card() as card, stood_in_for(H200):
        for length in (1100, 1101):
            NEW_SHAPES[name](length)
        before = card.through_triton
        counted = python_calls(NEW_SHAPES[name], rows_=1103)
        assert card.through_triton == before + launches
        assert len(counted) <= most, (len(counted), Counter(counted).most_common(40))


def test_no_more_is_kept_than_said(monkeypatch):
    monkeypatch.setattr(kept, "MOST_KEPT", 8)
    with on_no_card() as card:
        for length in range(1, 40):
            flash_attention(
                rows(1, length, 1, 16), rows(1, length, 1, 16), rows(1, length, 1, 16), forward="m16n16w4s1"
            )
            assert len(flash.CALLS) <= 8
        truth = launches_of(card, flash_attention, flash_given())
        assert launches_of(card, flash_attention, flash_given()) == truth


def test_no_tensor_is_kept_alive():
    with on_no_card():
        for function, make in CALLS.values():
            given = make()
            for _ in range(2):
                function(**given)
            table = [getattr(given["step"], name) for name in paged.StepTensors._fields] if "step" in given else []
            held = [weakref.ref(x) for x in [*given.values(), *table] if isinstance(x, torch.Tensor)]
            del given, table
            gc.collect()
            assert not [x for x in held if x() is not None]


def test_hooks_and_switches_of_triton_are_seen(monkeypatch):
    heard = []
    with on_no_card() as card:
        given = flash_given()
        for _ in range(2):
            flash_attention(**given)
        warm = card.through_triton
        knobs.runtime.launch_enter_hook.add(heard.append)
        try:
            flash_attention(**given)
        finally:
            knobs.runtime.launch_enter_hook.remove(heard.append)
        assert card.through_triton == warm + 1, "a hook was passed over"
        flash_attention(**given)
        assert card.through_triton == warm + 1
        monkeypatch.setattr(knobs.runtime, "debug", True)
        flash_attention(**given)
        assert card.through_triton == warm + 2, "another kernel is compiled for debugging"


def test_threads_note_for_themselves():
    with on_no_card() as card:
        truth = launches_of(card, hstu_bsa_attention, bsa_given())
        forget()
        failed = []

        def work():
            try:
                for _ in range(20):
                    hstu_bsa_attention(**bsa_given())
            except BaseException as why:
                failed.append(why)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert launches_of(card, hstu_bsa_attention, bsa_given()) == truth


def test_what_cannot_be_repeated_says_why(monkeypatch):
    with on_no_card() as card:
        real = card.compiled

        def with_scratch(name, ordered):
            compiled = real(name, ordered)
            compiled.run.global_scratch_size = 8
            return compiled

        monkeypatch.setattr(card, "compiled", with_scratch)
        for _ in range(3):
            flash_attention(**flash_given())
        (call,) = flash.CALLS._calls.values()
        assert not call.forward.plans
        assert call.forward.fault == "the kernel needs scratch memory from Triton"
        assert card.through_triton == 3


LAUNCHER = """
from functools import partial
from types import SimpleNamespace
import torch, triton
from triton.backends.nvidia import driver
from triton.tools.tensor_descriptor import TensorDescriptor
from attnbench.kernels.shared.launch import Repeat

calls = []
def launch(*given):
    calls.append(given)
def fill(*given):
    return ("map", *[list(x) if isinstance(x, (list, tuple)) else x for x in given])
utils = SimpleNamespace(launch=partial(launch), build_signature_metadata=lambda x: ("bytes", *x),
                        fill_tma_descriptor=fill, fill_tma_descriptor_tiled=fill)
triton.runtime.driver.set_active(SimpleNamespace(utils=utils))
driver.PyKernelArg = lambda **fields: tuple(fields.values())
driver.compile_module_from_src = lambda **given: SimpleNamespace(launch=partial(launch))
driver.library_dirs = list
signature = {"a": "*bf16", "b": "tensordesc<bf16[1,16,1,64]>", "c": "i32", "d": "constexpr", "e": ("i32", "constexpr"),
             "f": "tensordesc<bf16[1,16,1,64]>", "g": "fp32", "h": ("*bf16", ("i32", "*bf16", "constexpr"), "i32")}
described = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [1, 16, 1, 64], "fp4_padded": False}
metadata = SimpleNamespace(tensordesc_meta=[described, described | {"swizzle": 2}], num_ctas=1, global_scratch_size=0,
                           global_scratch_align=1, profile_scratch_size=0, profile_scratch_align=1,
                           launch_cooperative_grid=False, launch_pdl=True, instrumentation_mode="")
source = SimpleNamespace(constants={}, signature=signature, fn=SimpleNamespace(arg_names=list(signature)))
launcher = driver.CudaLauncher(source, metadata)
compiled = SimpleNamespace(run=launcher, function=11, packed_metadata=(8, 1, 0), metadata=metadata)
def given(x):
    made = TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 16, 1, 64])
    return [x, made, 5, "pp", (7, 1), made, 0.5, (x, (3, x, None), 9)]
one, two = (torch.zeros(2, 32, 4, 64, dtype=torch.bfloat16) for _ in range(2))
repeat = Repeat(compiled, (3, 2), given(one), SimpleNamespace(numbers={}, number=lambda x: 3))
assert repeat.launched_on == {3}
repeat.renumber({3: 0})
for x in (one, two, one):
    launcher(3, 2, 1, 99, 11, (8, 1, 0), None, None, None, *given(x))
    repeat(99, [x.data_ptr()], repeat.bound({}))
def plain(value, x):
    if isinstance(value, torch.Tensor):
        assert value is x
        return value.data_ptr()
    return [plain(one, x) for one in value] if isinstance(value, (list, tuple)) else value
for at, x in enumerate((one, two, one)):
    triton_s, ours = (plain(call, x) for call in calls[2 * at : 2 * at + 2])
    assert triton_s == ours, (triton_s, ours)
assert plain(calls[0], one) != plain(calls[2], two)
print(triton.__version__, len(calls))
"""


@pytest.mark.parametrize("folder", [None, OLDEST], ids=["pinned", "3.6"])
def test_a_repeat_gives_the_launcher_what_triton_gives_it(folder):
    """Triton's own launcher around a function that notes, of each Triton, in a process of its own."""
    if folder is not None and not (folder / ".ready").is_file():
        pytest.skip("Triton 3.6 is not there; `make test` installs it")
    paths = [str(folder)] * (folder is not None) + [str(ROOT / "src")]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    version, calls = done.stdout.split()
    assert calls == "6"
    assert version == (triton.__version__ if folder is None else "3.6.0")
