"""Kernels can be interpreted in a process that has compiled ones, and leave no trace there."""

from __future__ import annotations

import sys

import pytest
import torch

from .interpreter import interpreted

pytest.importorskip("triton")


def test_a_kernel_is_interpreted_and_the_compiled_one_comes_back():
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    import attnbench.kernels.hstu.dense.portable.forward as compiled

    zeros = tl.zeros
    with interpreted("attnbench.kernels.hstu.dense.portable.forward") as (module,):
        assert isinstance(module.hstu_dense_forward, InterpretedFunction)
        assert not isinstance(compiled.hstu_dense_forward, InterpretedFunction)
        assert tl.zeros is not zeros
    assert sys.modules["attnbench.kernels.hstu.dense.portable.forward"] is compiled
    assert tl.zeros is zeros


def test_what_the_library_compiles_is_interpreted_too(tmp_path, monkeypatch):
    (tmp_path / "summed.py").write_text(
        """
import triton
import triton.language as tl


@triton.jit
def total(x_ptr, y_ptr, size, BLOCK: tl.constexpr):
    acc = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        acc += tl.sigmoid(tl.load(x_ptr + at, mask=at < size, other=0.0)) * (at < size)
    tl.store(y_ptr, tl.sum(acc))
""",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    import triton.language as tl

    x, y, full = torch.linspace(-3, 3, 50), torch.empty(1), tl.core.full
    with interpreted("summed") as (module,):
        module.total[(1,)](x, y, 50, BLOCK=16)
    torch.testing.assert_close(y[0], x.sigmoid().sum())
    assert tl.core.full is full, "nothing that calls it would compile in this process"
    del sys.modules["summed"]
