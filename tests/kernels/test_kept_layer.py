"""Calls of a layer's elementwise kernels are kept: a warm one goes past Triton, and none is used for one that differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.arguments import Parts
from attnbench.kernels.hstu.layer import api as layer

from .launches import on_no_card
from .test_kept import ints, launches_of, rows


def vector(dims: int, **how: Any) -> torch.Tensor:
    return rows(1, dims, **how)[0]


def embed_given() -> dict[str, Any]:
    return {"ids": ints(1, 2, 0), "positions": ints(3, 4, 5), "table": rows(9, 64), "places": rows(6, 64), "scale": 8.0}


def norm_given() -> dict[str, Any]:
    return {"x": rows(5, 64), "weight": vector(64), "bias": vector(64), "eps": 1e-5}


def silu_given() -> dict[str, Any]:
    return {"x": rows(5, 192)[:, 64:]}


def gate_given() -> dict[str, Any]:
    given = {"a": rows(5, 64), "u": rows(5, 192)[:, 64:128], "weight": vector(64), "bias": vector(64)}
    return given | {"eps": 1e-5, "whole": True, "count": ints(5)}


def parts_of(count: int = 3, *, scale: float = 0.5, shuffled: bool = True) -> Parts:
    return Parts(torch.ones(5, count, 2, 32), scale, shuffled)


def pick_given() -> dict[str, Any]:
    return {"x": rows(9, 64), "rows": ints(4, 4, 1), "eps": 1e-6}


def tower_given() -> dict[str, Any]:
    return {"x": rows(70, 64), "weight": rows(2, 10, 32), "bias": rows(2, 10)}


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = {
    "embed": (layer.embed, embed_given),
    "norm": (layer.norm, norm_given),
    "silu": (layer.silu, silu_given),
    "gate": (layer.gate, gate_given),
    "gate-parts": (layer.gate, lambda: gate_given() | {"a": parts_of()}),
    "pick": (layer.pick, pick_given),
    "tower": (layer.tower, tower_given),
}
CHANGES: dict[str, list[dict[str, Any]]] = {
    "embed": [{"scale": 1.0}, {"ids": ints(1, 2), "positions": ints(3, 4)}, {"table": rows(9, 64, offset=1)}],
    "norm": [{"x": rows(6, 64)}, {"eps": 1e-6}, {"weight": vector(64, offset=1)}],
    "silu": [{"x": rows(6, 192)}, {"x": rows(5, 192, dtype=torch.float16)}, {"x": rows(5, 200)[:, 8:136]}],
    "gate": [{"count": None}, {"whole": False}, {"u": rows(5, 64)}, {"eps": 1e-6}],
    "gate-parts": [{"a": rows(5, 64)}]
    + [{"a": parts_of(**one)} for one in ({"count": 4}, {"scale": 1.0}, {"shuffled": False})],
    "tower": [{"x": rows(80, 64) + 1}, {"weight": rows(2, 3, 32), "bias": rows(2, 3)}, {"bias": rows(2, 10, offset=1)}],
    "pick": [{"rows": ints(4)}, {"x": rows(9, 64, dtype=torch.float16)}, {"eps": 1e-5}],
}


@pytest.mark.parametrize("name", CALLS)
def test_a_warm_call_launches_what_the_first_did_past_triton(name):
    function, make = CALLS[name]
    layer._calls._calls.clear()
    with on_no_card() as card:
        first = launches_of(card, function, make())
        assert card.through_triton == len(first) == 1
        before = make()
        assert launches_of(card, function, make()) == first
        assert card.through_triton == 1
        del before


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param(name, one, id=f"{name}-{'-'.join(one)}-{at}")
        for name in CHANGES
        for at, one in enumerate(CHANGES[name])
    ],
)
def test_what_is_kept_is_not_used_for_a_call_that_differs(name, changes):
    function, make = CALLS[name]
    layer._calls._calls.clear()
    with on_no_card() as card:
        truth = launches_of(card, function, make() | changes)
        layer._calls._calls.clear()
        base = [launches_of(card, function, make()) for _ in range(2)][-1]
        assert [launches_of(card, function, make() | changes) for _ in range(3)] == [truth] * 3
        assert launches_of(card, function, make()) == base != truth


def test_what_is_wrong_stays_refused():
    with on_no_card():
        for _ in range(2):
            layer.norm(**norm_given())
            with pytest.raises(ValueError, match=r"hstu_norm: weight\.shape=63 does not fit; 64"):
                layer.norm(**norm_given() | {"weight": vector(63)})


def test_a_number_in_a_tensor_is_read_at_each_call():
    scale = torch.tensor(0.5)
    layer._calls._calls.clear()
    with on_no_card() as card:
        given = embed_given() | {"scale": scale}
        half = [launches_of(card, layer.embed, given) for _ in range(2)][-1]
        scale.fill_(2.0)
        assert launches_of(card, layer.embed, given) != half
        assert len(layer._calls) == 2
