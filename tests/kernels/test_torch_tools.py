"""The kernels under PyTorch's own tools: traces of `torch.jit`."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from .interpreter import interpreted

FAMILIES = ("flash", "flash.quant", "flash.sparse", "hstu.dense", "hstu.bsa")
OLD = "ignore:`torch.jit:DeprecationWarning"
DIFFERENTIABLE = ("flash", "hstu.dense", "hstu.bsa")


@pytest.fixture(scope="module")
def apis():
    with interpreted(*(f"attnbench.kernels.{name}.api" for name in FAMILIES)) as found:
        yield dict(zip(FAMILIES, found, strict=True))


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def attention(apis: Any, family: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Attention of [1, n, 2, 16] to itself, n up to 64, with the offsets [2] of its one sequence."""
    every, api = torch.ones(1, 2, 1, 1, dtype=torch.bool), apis[family]
    return {
        "flash": lambda x, _: api.flash_attention(x, x, x, causal=True)[0],
        "flash.quant": lambda x, _: api.flash_quant_attention(x.half(), x.half(), x.half())[0],
        "flash.sparse": lambda x, _: api.flash_sparse_attention(x, x, x, every, block=(64, 64))[0],
        "hstu.dense": lambda x, ends: api.hstu_attention(x[0], x[0], x[0], ends, 64)[None],
        "hstu.bsa": lambda x, ends: api.hstu_bsa_attention(
            x[0], x[0], x[0], ends, 64, block_size=16, block_counts=2, scaling_seqlen=64
        )[0][None],
    }[family]


def drawn(n: int, *, grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(1, n, 2, 16, generator=torch.Generator().manual_seed(n))
    return x.requires_grad_(grad), ints(0, n)


def gradient(attend: Any, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(attend(x, ends).sin().sum(), x)[0]


@pytest.mark.filterwarnings(OLD)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_trace_of_torch_jit_is_of_any_length_differentiated_and_saved(apis, family, recwarn):
    attend = attention(apis, family)
    traced = torch.jit.trace(attend, drawn(40))
    x, ends = drawn(51)
    assert torch.equal(traced(x, ends), attend(x, ends))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    assert torch.equal(torch.jit.load(file)(x, ends), attend(x, ends))
    assert not [one for one in recwarn if one.category is torch.jit.TracerWarning]
    if family in DIFFERENTIABLE:
        x.requires_grad_()
        torch.testing.assert_close(
            gradient(traced, x, ends), gradient(attend, x, ends)
        )  # sums of q, k and v, in any order


@pytest.mark.filterwarnings(OLD)
def test_a_length_that_torch_jit_traces_is_refused_as_what_it_is(apis):
    flash, hstu = apis["flash"].flash_attention, apis["hstu.dense"].hstu_attention
    packed = lambda x, ends, longest: flash(x[0], x[0], x[0], cu_seqlens_q=ends, max_seqlen_q=longest)[0]  # noqa: E731
    jagged = lambda x, ends, longest: hstu(x[0], x[0], x[0], ends, longest)  # noqa: E731
    given = drawn(40)
    for call, name in ((packed, "max_seqlen_q"), (jagged, "max_seqlen")):
        refused = rf"^attnbench::\w+: {name} is a tensor, as all lengths are for torch.jit.trace; int\(\) of it, or"
        with pytest.raises(ValueError, match=refused):
            torch.jit.trace(lambda x, ends, call=call: call(x, ends, x.shape[1]), given)
        with pytest.warns(torch.jit.TracerWarning, match="Python integer"):
            traced = torch.jit.trace(lambda x, ends, call=call: call(x, ends, int(x.shape[1])), given)
        assert torch.equal(traced(*given), call(*given, 40))
