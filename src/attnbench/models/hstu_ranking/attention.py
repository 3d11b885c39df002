"""Interchangeable attention of a step: a kernel that reads pages, pages gathered for a contiguous kernel, or plain torch.

An attention is created for a step and serves all its layers.  It appends the new history to a layer's pages and computes
attention of the new rows to cached and new keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from attnbench.errors import unknown
from attnbench.kernels.hstu.arguments import Parts
from attnbench.kernels.hstu.paged.problem import Step
from attnbench.models.hstu_ranking.config import WHO
from attnbench.models.paged_cache.packing import send

NOTHING: np.ndarray = np.empty(0, dtype=np.int64)
WORKSPACE = {"cuda": 2**30, "cpu": 2**28}
"""Limit of the intermediate results of the plain evaluation, in bytes: it processes rows in chunks that stay below.

A GPU has larger chunks: launches of small ones take the host longer than the GPU."""


@dataclass(frozen=True)
class Sequences:
    """The sequences of a step, on the device and, if the host knows them, on the host."""

    table: Step
    cached: Sequence[int]
    new: Sequence[int]
    "rows of new history"
    targets: Sequence[int]
    pages: Sequence[list[int]]
    page_size: int
    alpha: float
    scaling_seqlen: int


class Attention(Protocol):
    """Interface that a layer calls: q, k, v and output [rows, heads, dim], pool [pages, 2, page_size, heads, dim]."""

    def append(self, pool: Tensor, k: Tensor, v: Tensor) -> None:
        """Write keys and values of the new history into the pages."""

    def attend(self, pool: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the new rows; pool None: nothing is cached."""


class Reference:
    """Plain torch, sequence by sequence, in any precision on any device."""

    def __init__(self, sequences: Sequences) -> None:
        """For one step."""
        self.sequences = sequences

    def append(self, pool: Tensor, k: Tensor, v: Tensor) -> None:
        """See `Attention`."""
        rows, entries, slots = self._places
        pages = self.pages_of(entries)
        pool[pages, 0, slots], pool[pages, 1, slots] = k[rows], v[rows]

    def pages_of(self, entries: Tensor) -> Tensor:
        """Return page ids at positions of the table, read on the device so that a graph reads those of its step."""
        return self.sequences.table.indices.index_select(0, entries).long()

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows of the new history, with each row's position in the table and slot in the page."""
        given, start, first = self.sequences, 0, 0
        rows: list[np.ndarray] = []
        entries: list[np.ndarray] = []
        slots: list[np.ndarray] = []
        for held, cached, new, targets in zip(given.pages, given.cached, given.new, given.targets, strict=True):
            at = np.arange(cached, cached + new)
            rows.append(np.arange(start, start + new))
            entries.append(first + at // given.page_size)
            slots.append(at % given.page_size)
            start += new + targets
            first += len(held)
        found = _sent((rows, entries, slots), given.table.cached.device)
        return found[0], found[1], found[2]

    def attend(self, pool: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attention`."""
        given, out, start, entry = self.sequences, torch.empty_like(v), 0, 0
        for held, cached, new, targets in zip(given.pages, given.cached, given.new, given.targets, strict=True):
            rows, pages = slice(start, start + new + targets), slice(entry, entry + len(held))
            start, entry = rows.stop, pages.stop
            keys, values = k[rows], v[rows]
            if cached:
                assert pool is not None
                before = pool.index_select(0, given.table.indices[pages]).transpose(0, 1).flatten(1, 2)[:, :cached]
                keys, values = torch.cat([before[0], keys]), torch.cat([before[1], values])
            length = cached + new + targets
            step = max(1, WORKSPACE.get(q.device.type, 2**28) // (4 * keys.shape[1] * length * keys.element_size()))
            queries, keys, values = q[rows].transpose(0, 1), keys.permute(1, 2, 0), values.transpose(0, 1)
            for first in range(0, new + targets, step):
                last = min(first + step, new + targets)
                end = cached + last  # later keys are seen by none of these rows
                sees = torch.ones(last - first, end, dtype=torch.bool, device=q.device).tril_(cached + first)
                sees[:, cached + new :].triu_(first - new)  # of the candidates, a row sees itself alone
                scores = torch.bmm(queries[:, first:last], keys[:, :, :end]) * given.alpha
                weights = torch.nn.functional.silu(scores) * sees
                attended = torch.bmm(weights, values[:, :end]) / given.scaling_seqlen
                out[rows.start + first : rows.start + last] = attended.transpose(0, 1)
        return out


class Paged:
    """attnbench's kernel: one launch reads pages and new rows."""

    def __init__(self, sequences: Sequences) -> None:
        """For one step."""
        self.sequences = sequences

    def append(self, pool: Tensor, k: Tensor, v: Tensor) -> None:
        """See `Attention`."""
        from attnbench.kernels.hstu.paged.api import hstu_paged_append

        hstu_paged_append(k, v, pool, self.sequences.table)

    def silu_append(self, pool: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
        """SiLU of q, k and v in place, and the append, in one launch."""
        from attnbench.kernels.hstu.paged.api import hstu_paged_silu_append

        hstu_paged_silu_append(q, k, v, pool, self.sequences.table)

    def append_aside(self, pool: Tensor, k: Tensor, v: Tensor) -> None:
        """Append; during graph capture, on a branch of the graph, parallel to everything before `join`.

        Attention does not need the append: it reads the cached tokens from pages and the new rows from k and v, and the
        append writes only slots of new tokens.
        """
        branch = _branch(k)
        if branch is None:
            self.append(pool, k, v)
            return
        # After k and v are complete, and after the wait for pages that come from host memory: the append writes to them.
        branch.wait_stream(torch.cuda.current_stream(k.device))
        with torch.cuda.stream(branch):
            self.append(pool, k, v)

    def join(self, x: Tensor) -> None:
        """Let the rest of the step wait for the append of `append_aside`.

        Called in every layer before k and v are freed: later launches may reuse their memory.  So no branch is open at
        the end of the capture, and everything that waits for a replay, such as a copy of the pages to host memory or
        the next step, waits for its appends too.
        """
        branch = _branch(x)
        if branch is not None:
            torch.cuda.current_stream(x.device).wait_stream(branch)

    def attend(self, pool: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attention`."""
        from attnbench.kernels.hstu.paged.api import hstu_paged_attention

        return hstu_paged_attention(q, k, v, self._pool(pool, q), self.sequences.table, **self._numbers)

    def attend_parts(self, pool: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor | Parts:
        """Attention that returns the parts, not their sum, if keys are split."""
        from attnbench.kernels.hstu.paged.api import hstu_paged_parts

        return hstu_paged_parts(q, k, v, self._pool(pool, q), self.sequences.table, **self._numbers)

    @property
    def _numbers(self) -> dict[str, Any]:
        return {"alpha": self.sequences.alpha, "scaling_seqlen": self.sequences.scaling_seqlen}

    def _pool(self, pool: Tensor | None, q: Tensor) -> Tensor:
        """Return the pool; if nothing is cached, one with a page that no table refers to."""
        return q.new_empty(1, 2, self.sequences.page_size, *q.shape[1:]) if pool is None else pool


class Gathered(Reference):
    """Copies cached and new keys and values together for `hstu_attention`, which does not read pages."""

    def attend(self, pool: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Attention`."""
        from attnbench.kernels.hstu.dense.api import hstu_attention

        given = self.sequences
        keys, values = self.gathered(pool, k, v)
        return hstu_attention(
            q,
            keys,
            values,
            self._offsets,
            given.table.max_cached + given.table.max_new,  # rounded bounds, which many steps share
            offsets_q=given.table.offsets,
            max_seqlen_q=given.table.max_new,
            num_targets=given.table.num_targets,
            alpha=given.alpha,
            scaling_seqlen=given.scaling_seqlen,
        )

    def gathered(self, pool: Tensor | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of all sequences, cached and new, packed [keys, heads, dim]."""
        if not any(self.sequences.cached):
            return k, v
        assert pool is not None
        entries, slots, old, fresh = self._gather
        pages = self.pages_of(entries)
        keys, values = (x.new_empty(len(old) + len(fresh), *x.shape[1:]) for x in (k, v))
        keys[old], values[old] = pool[pages, 0, slots], pool[pages, 1, slots]
        keys[fresh], values[fresh] = k, v
        return keys, values

    @property
    def _lengths(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        return self.sequences.cached, self.sequences.new, self.sequences.targets

    @cached_property
    def _offsets(self) -> Tensor:
        ends = np.cumsum([0, *map(sum, zip(*self._lengths, strict=True))])
        return send([ends], self.sequences.table.cached.device)[0].int()

    @cached_property
    def _gather(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return table position and slot of each cached key, its row in the copy, and the rows of the new keys."""
        given, start, first = self.sequences, 0, 0
        entries: list[np.ndarray] = []
        slots: list[np.ndarray] = []
        old: list[np.ndarray] = []
        fresh: list[np.ndarray] = []
        for held, cached, new, targets in zip(given.pages, *self._lengths, strict=True):
            at = np.arange(cached)
            entries.append(first + at // given.page_size)
            slots.append(at % given.page_size)
            old.append(at + start)
            fresh.append(np.arange(start + cached, start + cached + new + targets))
            start += cached + new + targets
            first += len(held)
        found = _sent((entries, slots, old, fresh), given.table.cached.device)
        return found[0], found[1], found[2], found[3]


def _sent(lists: Sequence[list[np.ndarray]], device: torch.device) -> list[Tensor]:
    return send([np.concatenate([NOTHING, *arrays]) for arrays in lists], device)


AttentionMaker = Callable[[Sequences], Attention]
ATTENTIONS: dict[str, AttentionMaker] = {"reference": Reference, "paged": Paged, "gathered": Gathered}
PADDED = ("paged", "reference")
"Attentions that accept padding: rows and sequences beyond a step's own."
CAPTURED = ("paged",)
"Attentions that read all lengths on the device; a CUDA graph of any other would keep the lengths of one step."


def _branch(x: Tensor) -> torch.cuda.Stream | None:
    """Return the stream for a branch of the graph being captured on the device of x; None without a capture."""
    return _beside(x.device) if x.is_cuda and torch.cuda.is_current_stream_capturing() else None


@cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def attention_of(name: str | AttentionMaker, sequences: Sequences) -> Attention:
    """Return an attention for one step, by name or by a function that creates it.

    Raises:
        UsageError: there is no attention of that name.
    """
    if not isinstance(name, str):
        return name(sequences)
    if name not in ATTENTIONS:
        raise unknown(WHO, "attention", name, ATTENTIONS)
    return ATTENTIONS[name](sequences)
