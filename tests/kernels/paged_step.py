"""Steps of paged HSTU attention for tests: pages in random order, NaN wherever nobody wrote, and the plain answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnbench.backends.base import Budget
from attnbench.check.compare import compare, make_truth
from attnbench.workloads.base import OutputKind


@dataclass
class Paged:
    """A step and what it was made of: `keys` and `values` [cached, H, D] of each sequence."""

    q: Tensor
    k: Tensor
    v: Tensor
    pool: Tensor
    table: dict
    keys: list[Tensor]
    values: list[Tensor]
    lengths: list[tuple[int, int, int]]


def make_step(lengths, *, page_size=32, heads=1, dim=16, dtype=torch.float32, seed=0, spare=3) -> Paged:
    """A step of sequences (cached, new history, candidates); pages are shuffled, unwritten slots are NaN."""
    made = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=made, dtype=torch.float64).to(dtype)

    held = [-(-(cached + history) // page_size) for cached, history, _ in lengths]
    pages = sum(held) + spare
    order = torch.randperm(pages, generator=made).to(torch.int32)[: sum(held)]
    pool = torch.full((pages, 2, page_size, heads, dim), torch.nan, dtype=dtype)
    indptr = torch.tensor([0, *held]).cumsum(0).to(torch.int32)
    keys, values = ([draw(cached, heads, dim) for cached, _, _ in lengths] for _ in range(2))
    for b, (cached, _, _) in enumerate(lengths):
        for position in range(cached):
            page = order[indptr[b] + position // page_size]
            pool[page, 0, position % page_size] = keys[b][position]
            pool[page, 1, position % page_size] = values[b][position]
    news = [history + targets for _, history, targets in lengths]
    rows = draw(sum(news), 3, heads, dim)
    table = {
        "offsets": torch.tensor([0, *news]).cumsum(0).to(torch.int32),
        "cached": torch.tensor([cached for cached, _, _ in lengths], dtype=torch.int32),
        "indptr": indptr,
        "indices": order,
        "num_targets": torch.tensor([targets for _, _, targets in lengths], dtype=torch.int32),
        "max_new": max(news, default=0),
        "max_cached": max((cached for cached, _, _ in lengths), default=0),
    }
    return Paged(rows[:, 0], rows[:, 1], rows[:, 2], pool, table, keys, values, list(lengths))


def plain(step: Paged, *, dtype, alpha, scaling_seqlen) -> Tensor:
    """The answer written out, every product in one precision."""
    out = torch.zeros(step.q.shape, dtype=dtype)
    at = 0
    for (cached, history, targets), keys, values in zip(step.lengths, step.keys, step.values, strict=True):
        new = slice(at, at + history + targets)
        at = new.stop
        k = torch.cat([keys, step.k[new]]).to(dtype).transpose(0, 1)
        v = torch.cat([values, step.v[new]]).to(dtype).transpose(0, 1)
        i = torch.arange(history + targets)[:, None] + cached
        j = torch.arange(cached + history + targets)[None, :]
        sees = ((j <= i) & (j < cached + history)) | (j == i)
        weights = torch.nn.functional.silu(step.q[new].to(dtype).transpose(0, 1) @ k.mT * alpha) * sees
        out[new] = ((weights @ v) / scaling_seqlen).transpose(0, 1)
    return out


def held(step: Paged, found: Tensor, *, alpha, scaling_seqlen) -> None:
    """Hold an output against the answer in fp64."""
    assert found.isfinite().all()
    terms = {"alpha": alpha, "scaling_seqlen": scaling_seqlen}
    truth, rounded = ({"out": plain(step, dtype=dtype, **terms)} for dtype in (torch.float64, step.q.dtype))
    # The sum of the sizes of what is added up, by a rounding step of fp32, in which every kernel adds.
    sizes = replace(
        step,
        q=step.q.abs(),
        k=step.k.abs(),
        v=step.v.abs(),
        keys=[x.abs() for x in step.keys],
        values=[x.abs() for x in step.values],
    )
    expected = plain(sizes, dtype=torch.float64, **terms) * torch.finfo(torch.float32).eps / 4
    whole = make_truth(truth, rounded, {"out": expected}, step.q.dtype, {"out": OutputKind.VALUE})
    outcome = compare({"out": found}, whole, Budget())
    assert outcome.ok, outcome.faults
