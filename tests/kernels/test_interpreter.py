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


def operands(kind):
    """Pairs of a tile, or a single value, of a type with numbers and with tiles of other types, in both orders."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    def tile(of, *shape):
        data = np.full(shape or (1,), 3).astype(interpreter._get_np_dtype(of))
        return tl.tensor(interpreter.TensorHandle(data, of), tl.block_type(of, [*shape]) if shape else of)

    others = [tile(getattr(tl, name), *shape) for name in KINDS for shape in ((), (4,), (1, 4))]
    for shape in ((), (4,), (2, 1)):
        for other in (*NUMBERS, *others):
            yield tile(getattr(tl, kind), *shape), other
            yield other, tile(getattr(tl, kind), *shape)


KINDS = ("int1", "int8", "uint8", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "float64")


NUMBERS = (0, -0.0, 0.0, 1, True, -5, 300, 2.5, 2**31, float("inf"), float("nan"))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_operands_are_converted_as_triton_converts_them(kind):
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    theirs = TritonSemantic.binary_op_type_checking_impl, TritonSemantic.broadcast_impl_value, TritonSemantic.cast
    names = [one.__name__ for one in theirs]

    def found(convert, pair, flags):
        try:
            return [
                (str(one.type), str(one.dtype), one.handle.data.tobytes(), str(one.shape), str(one.numel))
                for one in convert(interpreter.interpreter_semantic, *pair, *flags)
            ]
        except (AttributeError, TypeError, ValueError) as error:  # Triton 3.6 makes no number a bf16
            return str(error)

    with interpreted("attnbench.kernels.hstu.dense.portable.forward"):
        interpreter._patch_lang(None)
        for flags in ((), (True, True), (False, False, True, True), (False, False, False)):
            for pair in operands(kind):
                mine = found(TritonSemantic.binary_op_type_checking_impl, pair, flags)
                with pytest.MonkeyPatch.context() as patch:
                    for name, one in zip(names, theirs, strict=True):
                        patch.setattr(TritonSemantic, name, one)
                    assert mine == found(TritonSemantic.binary_op_type_checking_impl, pair, flags), (pair, flags)
