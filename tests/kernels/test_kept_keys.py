"""Dense keys and values that grow, as a cache does, are one kept call up to each bound: launched as the call itself would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels import flash_attention
from attnbench.kernels.flash import calls as flash
from attnbench.kernels.flash.config.decode import is_decode
from attnbench.kernels.flash.config.defaults import forward_config
from attnbench.kernels.flash.problem import bound_of_keys
from attnbench.kernels.shared import kept

from .launches import on_no_card
from .test_kept import launches_of, rows

bf16 = torch.bfloat16
Make = Callable[[int], torch.Tensor]
MOST, HEADS, DIMS = 1400, 2, 64


def layouts(batch: int) -> dict[str, Make]:
    """Ways in which keys [batch, count, HEADS, DIMS] lie."""
    cache = rows(batch, MOST, HEADS, DIMS)
    by_head = rows(batch, HEADS, MOST, DIMS)
    return {
        "contiguous": lambda count: rows(batch, count, HEADS, DIMS),
        "heads first": lambda count: rows(batch, HEADS, count, DIMS).transpose(1, 2),
        "slice of a cache": lambda count: cache[:, :count],
        "slice by head": lambda count: by_head[:, :, :count].transpose(1, 2),
        "one projection": lambda count: rows(batch, count, 2, HEADS, DIMS)[:, :, 1],
        "rows first": lambda count: rows(count, batch, HEADS, DIMS).transpose(0, 1),
        "one head for all": lambda count: rows(batch, count, 1, DIMS).expand(batch, count, HEADS, DIMS),
        "one sequence for all": lambda count: rows(1, count, HEADS, DIMS).expand(batch, count, HEADS, DIMS),
        "not aligned": lambda count: rows(batch, count, HEADS, DIMS, offset=1),
    }


CALLS: dict[str, dict[str, Any]] = {
    "portable": {"q": rows(2, 70, 4, DIMS), "forward": "m64n64w4s2", "window": (900, 3)},
    "described": {"q": rows(2, 70, 4, DIMS), "forward": "m64n64w4s2-tma", "causal": True},
    "one sequence, described": {"q": rows(1, 70, 4, DIMS), "forward": "m64n64w4s2-tma"},
    "decode": {"q": rows(2, 1, 4, DIMS), "causal": True},
    "decode, described": {"q": rows(1, 3, 4, DIMS), "forward": "m64n64w4s3-tma-decode"},
    "hopper": {"q": rows(2, 70, 4, DIMS), "forward": "m128n128w8s2-tma-ws-ticket"},
    "hopper, one sequence": {"q": rows(1, 70, 4, DIMS), "forward": "m128n128w8s2-tma-ws-ticket"},
    "odd rows": {"q": rows(2, 70, 4, DIMS), "forward": "m64n64w4s2"},
}


def with_gradients(**given: Any) -> None:
    given |= {name: given[name].detach().requires_grad_() for name in "qkv"}
    out, _ = flash_attention(**given)
    torch.autograd.grad(out, [given[name] for name in "qkv"], rows(*out.shape))


@pytest.mark.parametrize("name", CALLS)
def test_other_keys_are_no_other_call(name):
    fixed = CALLS[name]
    with on_no_card() as card:
        for layout, make in layouts(fixed["q"].shape[0]).items():

            def given(count: int, make: Make = make) -> dict[str, Any]:
                return fixed | {"k": make(count), "v": make(count)}

            try:
                for count in (515, 528):  # 16 divides one of them, for which kernels are compiled
                    flash_attention(**given(count))
            except ValueError as why:
                assert "does not fit order=ws" in str(why)  # noqa: PT017 (some layouts are not for Hopper's)
                continue
            before = card.through_triton
            counts = (516, 600, 639, 640)
            found = [launches_of(card, flash_attention, given(count)) for count in counts]
            assert card.through_triton == before, layout
            flash.CALLS._calls.clear()
            for count, launched in zip(counts, found, strict=True):
                assert launches_of(card, flash_attention, given(count)) == launched != [], (layout, count)
                flash.CALLS._calls.clear()


@pytest.mark.parametrize(
    "backward", ["b64x64w4s2-atomic", "b64x64w4s2-atomic-tma", "b128x128w8s2-atomic-tma-ws", "deterministic"]
)
def test_gradients_of_other_keys_are_no_other_call(backward):
    fixed: dict[str, Any] = {"q": rows(2, 70, 4, DIMS), "forward": "m64n64w4s2"}
    fixed |= {"deterministic": True} if backward == "deterministic" else {"backward": backward}

    def given(count: int) -> dict[str, Any]:
        return fixed | {"k": rows(2, count, HEADS, DIMS), "v": rows(2, count, HEADS, DIMS)}

    with on_no_card() as card:
        for count in (515, 528):
            with_gradients(**given(count))
        before = card.through_triton
        counts = (516, 600, 640)
        found = [launches_of(card, with_gradients, given(count)) for count in counts]
        assert card.through_triton == before
        for count, launched in zip(counts, found, strict=True):
            flash.CALLS._calls.clear()
            assert launches_of(card, with_gradients, given(count)) == launched != []


def test_a_generation_is_prepared_once_for_each_bound():
    cache = rows(2, MOST, HEADS, DIMS)
    q = rows(2, 1, 4, DIMS)
    with on_no_card() as card:
        lengths = range(2, MOST)
        for count in lengths:
            flash_attention(q, cache[:, :count], cache[:, :count], causal=True)
        bounds = {bound_of_keys(cache[:, :count]) for count in lengths}
        assert len(bounds) == 1 + -(-MOST // 128)  # one more where few queries are enough keys for the order decode
        # At two lengths the cache's sequences are as far apart as if all of it, or all of a head, had been given.
        assert len(bounds) <= len(flash.CALLS) <= len(bounds) + 2
        assert card.through_triton < 5 * len(flash.CALLS)  # of two kernels, and two kinds of lengths


def test_few_keys_and_none_are_what_they_were():
    """One row and no row are calls of their own; a bound is no argument that may be given."""
    q, make = rows(2, 70, 4, DIMS), layouts(2)["contiguous"]
    with on_no_card() as card:
        for count in (0, 1, 2, 3):
            given = {"q": q, "k": make(count), "v": make(count), "forward": "m64n64w4s2"}
            flash.CALLS._calls.clear()
            truth = launches_of(card, flash_attention, given)
            for other in (5, 64, 5, 64):
                flash_attention(q, make(other), make(other), forward="m64n64w4s2")
            assert [launches_of(card, flash_attention, given) for _ in range(2)] == [truth] * 2
        with pytest.raises(ValueError, match="max_seqlen_k=given is passed without cu_seqlens_q"):
            flash_attention(q, make(64), make(64), max_seqlen_k=128, forward="m64n64w4s2")
        with pytest.raises(ValueError, match=r"v\.shape=\(2, 65, 2\) does not fit; \(2, 64, 2\)"):
            flash_attention(q, make(64), make(65), forward="m64n64w4s2")


def test_defaults_of_a_bound_are_those_of_the_keys():
    for count in (*range(1, 1300), *range(1920, 2200), *range(4000, 4300)):
        bound = bound_of_keys(torch.empty(1, count, 1, 1, device="meta"))
        assert bound is not None
        assert count <= bound < count + 128
        for queries in (1, 17, 4000):
            assert is_decode(queries, count, 4) == is_decode(queries, bound, 4)
        for dim in (64, 128):
            found = [forward_config((9, 0), 2, dim, most, right=True, hopper=True) for most in (count, bound)]
            assert found[0] == found[1], count


def test_strides_that_follow_are_those_there_are():
    for make in layouts(3).values():
        for count in (2, 7, 64):
            x = make(count)
            assert tuple(map(int, kept.strides_in(x, 1))) == x.stride()
    cut = torch.empty(1, 9, 2, 8)[:, :5]
    assert tuple(map(int, kept.strides_in(cut, 1)))[1:] == cut.stride()[1:]
    assert kept.strides_in(torch.empty(2, 0, 4, 8), 1) == torch.empty(2, 0, 4, 8).stride()
    facts = [kept.facts_of(make(count), jagged={0: 1}) for make in layouts(3).values() for count in (66, 70)]
    assert all(one == other for one, other in zip(facts[::2], facts[1::2], strict=True))
    assert len(set(facts)) == len(layouts(3))
