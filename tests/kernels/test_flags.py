"""Flags of public functions: True or False and nothing that passes for them, of kept calls and in what is compiled."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("triton")

import torch

from attnbench.kernels import flash_attention, make_lists
from attnbench.kernels.compat import flash_attn, flash_attn_interface
from attnbench.kernels.flash.calls import CALLS as FLASH
from attnbench.kernels.hstu.layer.api import gate

from .launches import on_no_card
from .test_kept import CALLS, rows

WRONG = ("no", "", 1, 0, 1.5, None, [], torch.tensor(True))


def flags_of(function) -> list[str]:
    return [name for name, one in inspect.signature(function).parameters.items() if one.annotation in (bool, "bool")]


FLAGS = [(name, flag) for name, (function, _) in CALLS.items() for flag in flags_of(function)]


def refused(function, given, flag) -> None:
    for value in WRONG:
        with pytest.raises(ValueError, match=rf"^\w+: {flag}=.* True or False$") as why:
            function(**given | {flag: value})
        assert repr(value)[:40] in str(why.value)


def test_every_function_with_flags_is_here():
    assert {flag for _, flag in FLAGS} == {"causal", "deterministic", "pairs", "validate"}
    assert len(FLAGS) >= 20


@pytest.mark.parametrize(("name", "flag"), FLAGS)
def test_what_is_no_flag_is_refused_before_and_after_a_call_is_kept(name, flag):
    function, make = CALLS[name]
    with on_no_card():
        given = make()
        refused(function, given, flag)
        for _ in range(2):
            function(**given)
        refused(function, given, flag)
        function(**given)


def test_what_is_refused_is_not_kept():
    function, make = CALLS["flash"]
    with on_no_card():
        given = make()
        function(**given)
        before = len(FLASH)
        refused(function, given, "causal")
        refused(function, given, "deterministic")
        assert len(FLASH) == before


def test_lists_and_the_gate():
    with on_no_card():
        q, block_map = rows(1, 128, 2, 64), torch.ones(1, 2, 2, 2, dtype=torch.bool)
        given = {"block_map": block_map, "q": q, "k": q, "block": (64, 64)}
        for flag in ("causal", "validate"):
            refused(make_lists, given, flag)
        x, row = torch.ones(4, 16), torch.ones(16)
        refused(gate, {"a": x, "u": x, "weight": row, "bias": row, "eps": 1e-6}, "whole")


@pytest.mark.parametrize("module", [flash_attn, flash_attn_interface])
def test_functions_under_other_names(module):
    with on_no_card():
        q = rows(1, 128, 2, 64)
        for flag in ("causal", "deterministic"):
            refused(module.flash_attn_func, {"q": q, "k": q, "v": q}, flag)
        with pytest.raises(
            ValueError, match=r"^flash_attn_func: return_attn_probs='no' is not supported; True or False$"
        ):
            module.flash_attn_func(q, q, q, return_attn_probs="no")


def test_a_compiler_is_told_the_same():
    q = torch.zeros(1, 16, 2, 16, device="meta")
    with pytest.raises(ValueError, match="causal='no' cannot be used; True or False"):
        flash_attention(q, q, q, causal="no")
