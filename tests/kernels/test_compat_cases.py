"""Other packages' functions on shapes of their own tests, held against plain evaluations in fp64.

Shapes are drawn from the grids of FlashAttention's tests/test_flash_attn.py and hopper/test_flash_attn.py, of
recsys-examples' corelib/hstu/test.py and of generative-recommenders' hstu_attention_test.py (addresses of the
repositories: compat_signatures.toml), those small enough for Triton's interpreter.  What is expected is written here
from what their docstrings say.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from .interpreter import interpreted

COMPAT = "attnbench.kernels.compat"


@pytest.fixture(scope="module")
def modules():
    names = ("flash_attn", "flash_attn_interface", "hstu", "hstu_attn", "generative_recommenders")
    with interpreted(*(f"{COMPAT}.{name}" for name in names)) as found:
        yield dict(zip(names, found, strict=True))


def drawn(*shapes: tuple[int, ...], size: float = 1.0, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=generator) * size).requires_grad_() for shape in shapes]


def offsets_of(lengths: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, see: torch.Tensor) -> torch.Tensor:
    """[queries, H, D] in fp64; a query that sees nothing is 0."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1).double() for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~see, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", torch.where(see, weights, 0.0), v)


def window(queries: int, keys: int, causal: bool, left: int, right: int) -> torch.Tensor:
    """Query i sees keys from i + keys - queries - left to i + keys - queries + right; -1 is unbounded."""
    place = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)[None]
    see = torch.ones(queries, keys, dtype=torch.bool)
    if left >= 0:
        see &= key >= place - left
    if causal or right >= 0:
        see &= key <= place + (0 if causal else right)
    return see


def held(found: torch.Tensor, wanted: torch.Tensor, given: list[torch.Tensor]) -> None:
    """Demand that output and gradients are those of the plain evaluation, as near as fp32 sums are."""
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.detach().abs().max()))
    (upstream,) = drawn(tuple(found.shape), seed=9)
    upstream = upstream.detach()
    for one, other in zip(
        torch.autograd.grad(found, given, upstream), torch.autograd.grad(wanted, given, upstream.double()), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()) + 1e-6)


HEADS = {"mha": (2, 2), "mqa": (2, 1), "gqa": (4, 2)}
FLASH = [
    # queries, keys, dims, heads, causal, window, deterministic
    (128, 217, 59, "mqa", True, (-1, -1), True),
    (113, 203, 40, "mha", False, (31, 17), False),
    (108, 256, 64, "mha", True, (50, 60), True),
    (239, 1, 32, "gqa", True, (-1, -1), False),
    (1, 1, 64, "mha", True, (-1, -1), False),
    (113, 128, 111, "mqa", False, (-1, 9), False),
]


@pytest.mark.parametrize(("queries", "keys", "dim", "kind", "causal", "reach", "deterministic"), FLASH)
def test_flash_attention(modules, queries, keys, dim, kind, causal, reach, deterministic):
    heads, heads_kv = HEADS[kind]
    given = drawn((1, queries, heads, dim), (1, keys, heads_kv, dim), (1, keys, heads_kv, dim))
    found = modules["flash_attn"].flash_attn_func(*given, 0.0, None, causal, reach, deterministic=deterministic)
    held(found, softmax(*(x[0] for x in given), window(queries, keys, causal, *reach))[None], given)
    third = modules["flash_attn_interface"].flash_attn_func(
        *given, None, causal, window_size=reach, deterministic=deterministic
    )
    assert torch.equal(third, found)


@pytest.mark.parametrize(("causal", "reach"), [(True, (-1, -1)), (False, (20, 0))])
def test_flash_attention_of_packed_sequences(modules, causal, reach):
    lengths_q, lengths_k = [1, 113, 0, 27], [147, 128, 5, 64]
    starts_q, starts_k = offsets_of(lengths_q), offsets_of(lengths_k)
    given = drawn((sum(lengths_q), 2, 32), (sum(lengths_k), 1, 32), (sum(lengths_k), 1, 32))
    packed = *given, starts_q, starts_k, 113, 147
    found = modules["flash_attn"].flash_attn_varlen_func(*packed, causal=causal, window_size=reach)
    q, k, v = given
    wanted = [
        softmax(q[a:b], k[c:d], v[c:d], window(b - a, d - c, causal, *reach))
        for (a, b), (c, d) in zip(pairwise(starts_q.tolist()), pairwise(starts_k.tolist()), strict=True)
    ]
    held(found, torch.cat(wanted), given)
    third = modules["flash_attn_interface"].flash_attn_varlen_func(*packed, None, None, None, causal, window_size=reach)
    assert torch.equal(third, found)


def rows_see(
    rows: int, *, causal: bool = True, contexts: int = 0, targets: int = 0, reach: int | None = None
) -> torch.Tensor:
    """Which rows of a sequence of [contexts | history | targets] each row sees, one pair after the other.

    A row sees itself and, causal, what is before it; a target no other target; a context row everything but targets.
    In a window positions count from the last context row, and all targets stand at one place.
    """
    history = rows - targets
    stands = [
        min(max(row - contexts + 1, 0) if contexts else row, history - max(contexts - 1, 0)) for row in range(rows)
    ]
    see = torch.zeros(rows, rows, dtype=torch.bool)
    for row in range(rows):
        for key in range(rows):
            back = stands[row] - stands[key]
            near = back > 0 or (not causal and back != 0)
            see[row, key] = key == row or (near and (reach is None or abs(back) <= reach))
            if row < contexts and key < history:
                see[row, key] = True
    return see


def silu(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, alpha: float, divisor: float, see: torch.Tensor
) -> torch.Tensor:
    """[queries, H, Dv] in fp64, of the last rows of a sequence."""
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * alpha
    weights = torch.nn.functional.silu(scores) / divisor * see[see.shape[0] - q.shape[0] :]
    return torch.einsum("hqk,khd->qhd", weights, v.double())


MASKS = {
    "all": ((-1, -1), {"causal": False}),
    "causal": ((-1, 0), {}),
    "local": ((11, 11), {"causal": False, "reach": 11}),
    "causal-local": ((11, 0), {"reach": 11}),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", [([32, 20, 1], [32, 20, 1]), ([27, 8, 1], [32, 99, 51])], ids=["whole", "delta-q"])
def test_nvidia_hstu(modules, mask, lengths):
    reach, sees = MASKS[mask]
    lengths_q, lengths_k = lengths
    starts_q, starts_k = offsets_of(lengths_q), offsets_of(lengths_k)
    given = drawn((sum(lengths_q), 2, 32), (sum(lengths_k), 2, 32), (sum(lengths_k), 2, 32))
    longest = max(lengths_q), max(lengths_k)
    found = modules["hstu"].hstu_attn_varlen_func(
        *given, starts_q, starts_k, None, None, *longest, -1, None, None, window_size=reach, alpha=0.1
    )
    q, k, v = given
    wanted = [
        silu(q[a:b], k[c:d], v[c:d], 0.1, longest[0], rows_see(d - c, **sees))
        for (a, b), (c, d) in zip(pairwise(starts_q.tolist()), pairwise(starts_k.tolist()), strict=True)
    ]
    held(found, torch.cat(wanted), given)
    older = modules["hstu_attn"].hstu_attn_varlen_func(
        *given, starts_q, starts_k, *longest, window_size=reach, alpha=0.1
    )
    assert torch.equal(older, found)


@pytest.mark.parametrize(("contexts", "targets"), [(4, [3, 10]), (None, [0, 8]), (10, None)])
def test_nvidia_hstu_with_contexts_and_targets(modules, contexts, targets):
    lengths = [41, 30]
    starts = offsets_of(lengths)
    given = drawn(*[(sum(lengths), 2, 16)] * 3)
    counts = None if targets is None else torch.tensor(targets, dtype=torch.int32)
    found = modules["hstu"].hstu_attn_varlen_func(
        *given, starts, starts.clone(), None, None, 41, 41, 77, contexts, counts, 1, (-1, 0), 0.25
    )
    sees = [
        rows_see(length, contexts=contexts or 0, targets=target)
        for length, target in zip(lengths, targets or [0, 0], strict=True)
    ]
    held(found, together(given, starts, sees, 0.25, 77), given)


def test_nvidia_hstu_reads_the_offsets_of_queries_also_of_as_many_rows(modules):
    starts, given = offsets_of([5, 4]), drawn(*[(9, 2, 16)] * 3)
    for wrong in ("garbage", None, starts.float()):
        with pytest.raises(ValueError, match=r"offsets_q|cu_seqlens_q"):
            modules["hstu"].hstu_attn_varlen_func(
                *given, wrong, starts, None, None, 5, 5, -1, None, None, window_size=(-1, 0), alpha=0.1
            )


def together(
    given: list[torch.Tensor], starts: torch.Tensor, sees: list[torch.Tensor], alpha: float, divisor: float
) -> torch.Tensor:
    spans = zip(pairwise(starts.tolist()), sees, strict=True)
    return torch.cat([silu(*(x[a:b] for x in given), alpha, divisor, see) for (a, b), see in spans])


META = [
    # history, targets (None: not given), attention dim, linear dim, window, contexts
    ([20, 0, 13, 7], [5, 20, 1, 9], 16, 32, 0, 0),
    ([20, 3, 17, 11], [2, 4, 1, 3], 32, 16, 4, 10),
    ([20, 20, 5, 1], None, 64, 64, 3, 0),
    ([9, 20, 14, 2], None, 16, 16, 0, 10),
]


@pytest.mark.parametrize(("history", "targets", "dim", "dim_v", "reach", "contexts"), META)
def test_meta_hstu(modules, history, targets, dim, dim_v, reach, contexts):
    extra: Any = targets or [0] * len(history)
    lengths = [sum(pair) + contexts for pair in zip(history, extra, strict=True)]
    starts, most = offsets_of(lengths, torch.int64), 20 + 20 + contexts
    given = drawn((sum(lengths), 2, dim), (sum(lengths), 2, dim), (sum(lengths), 2, dim_v))
    found = modules["generative_recommenders"].hstu_mha(
        max_seq_len=most,
        alpha=dim**-0.5,
        q=given[0],
        k=given[1],
        v=given[2],
        seq_offsets=starts,
        causal=True,
        num_targets=None if targets is None else torch.tensor(targets),
        dropout_pr=0.0,
        max_attn_len=reach,
        contextual_seq_len=contexts,
    )
    sees = [
        rows_see(length, contexts=contexts, targets=target, reach=reach or None)
        for length, target in zip(lengths, extra, strict=True)
    ]
    held(found, together(given, starts, sees, dim**-0.5, most), given)
