# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Softmax attention forward of few queries on many keys: keys are divided among programs, partial results merged.

A job is the queries of all heads that share a KV head, of one sequence: row r of its tile is query r / R of head r % R,
with R heads to the KV head (more than BLOCK_M rows are several jobs).  The jobs' tiles of keys, one job after another,
are a list, and program p of P has entries [p T / P, (p + 1) T / P) of T (Ivanov et al. 2023 call that stream-K,
arXiv:2301.03598).  A job whose keys cross the end of a share is merged from partial results
(Dao et al. 2023, "Flash-Decoding"):

    for each part:  O_p, l_p = log2 sum of its weights       l = log2 Σ 2^l_p       O = Σ 2^(l_p - l) O_p

Each job starts with a wait for its queries and first tiles, so programs with several jobs would finish last.  The list
therefore has `lead` empty entries before each job's tiles, as many as an SM reads during that wait; none where all
programs have the same number of jobs.

A program's share begins within a job at most once, and ends so at most once: it has room for two partial results,
[2 P, BLOCK_M, BLOCK_V] fp32 and [2 P, BLOCK_M] of the logarithms, the first for a job that another program starts,
the second for one that another continues.  Which they are follows from the numbers above, so there are no atomics and
every sum has a fixed order.  A sequence that sees no key has one tile, so that its rows are written too.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from attnbench.kernels.flash.portable.forward import LN_2, fold
from attnbench.kernels.flash.tiles import Rows, first_row, keys_of_rows, load_tile, sees, sequence
from attnbench.kernels.shared.arguments import Strides

SCAN = tl.constexpr(256)
"Packed sequences whose lengths are read at a time."
COUNTS = (
    *("seqlen_q", "seqlen_k", "lse_batch", "lse_head", "left", "right"),
    *("batch", "heads_kv", "repeats", "row_tiles", "lead"),
)
"Arguments whose values the code is not specialized for."


class JobList(NamedTuple):
    """Numbers that determine the list."""

    batch: Any
    "number of sequences"
    jobs: Any
    "jobs of a sequence"
    lead: Any
    "empty entries before a job's tiles"
    cu_q_ptr: Any
    cu_k_ptr: Any
    seqlen_q: Any
    seqlen_k: Any
    left: Any
    right: Any


class Results(NamedTuple):
    """Where the results of a sequence are stored."""

    out_ptr: Any
    out_strides: Any
    lse_ptr: Any
    lse_strides: Any
    batch: Any
    "from `sequence`, like `query_start`"
    query_start: Any


@triton.jit
@no_type_check
def tiles_seen(queries, keys, listed, META: tl.constexpr):
    """First tile of keys that some query of a sequence sees, and how many: at least one, without queries none."""
    reach = keys_of_rows(
        first=0,
        last=queries - 1,
        keys=keys,
        shift=keys - queries,
        left=listed.left,
        right=listed.right,
        HAS_LEFT=META.HAS_LEFT,
        HAS_RIGHT=META.HAS_RIGHT,
    )
    begin = reach.low // META.BLOCK_N
    count = tl.maximum((reach.high + META.BLOCK_N - 1) // META.BLOCK_N - begin, 1)
    return begin, tl.where(queries > 0, count, 0)


@triton.jit
@no_type_check
def entries_of(count, lead):
    """Entries of a job in the list: empty ones and tiles; none for a sequence without queries."""
    return tl.where(count > 0, count + lead, 0)


@triton.jit
@no_type_check
def entries_listed(first, listed, META: tl.constexpr):
    """Entries that packed sequences from `first` on have in the list; none past the last sequence."""
    at = first + tl.arange(0, SCAN)
    there = at < listed.batch
    queries = tl.load(listed.cu_q_ptr + at + 1, mask=there, other=0) - tl.load(
        listed.cu_q_ptr + at, mask=there, other=0
    )
    keys = tl.load(listed.cu_k_ptr + at + 1, mask=there, other=0) - tl.load(listed.cu_k_ptr + at, mask=there, other=0)
    _, count = tiles_seen(queries, keys, listed, META)
    return entries_of(count, listed.lead) * listed.jobs


@triton.jit
@no_type_check
def entries_before(number, listed, META: tl.constexpr):
    """Entries in the list before those of this sequence, and of all sequences."""
    if META.PACKED:
        before = number * 0
        total = number * 0
        for first in range(0, listed.batch, SCAN):
            entries = entries_listed(first, listed, META)
            before += tl.sum(tl.where(first + tl.arange(0, SCAN) < number, entries, 0))
            total += tl.sum(entries)
    else:
        _, count = tiles_seen(listed.seqlen_q, listed.seqlen_k, listed, META)
        before = number * entries_of(count, listed.lead) * listed.jobs
        total = listed.batch * entries_of(count, listed.lead) * listed.jobs
    return before, total


@triton.jit
@no_type_check
def sequence_at(index, listed, META: tl.constexpr):
    """Sequence of the index-th entry in the list, and the number of entries before that sequence's."""
    if META.PACKED:
        number = index * 0
        before = index * 0
        passed = index * 0
        for first in range(0, listed.batch, SCAN):
            entries = entries_listed(first, listed, META)
            ends = passed + tl.cumsum(entries, 0)
            over = ends <= index
            number += tl.sum(over.to(tl.int32))
            before = tl.maximum(before, tl.max(tl.where(over, ends, 0)))
            passed += tl.sum(entries)
    else:
        _, count = tiles_seen(listed.seqlen_q, listed.seqlen_k, listed, META)
        number = index // (entries_of(count, listed.lead) * listed.jobs)
        before = number * entries_of(count, listed.lead) * listed.jobs
    return number, before


@triton.jit
@no_type_check
def sharers_of(programs, total):
    """Programs that get a share: no more than there are entries."""
    return tl.maximum(tl.minimum(programs, total), 1)


@triton.jit
@no_type_check
def share_of(program, programs, total):
    """Entries [first, end) of the list for a program: shares differ by at most one entry; empty without a share."""
    sharers = sharers_of(programs, total)
    each = total // sharers
    rest = total - each * sharers
    first = program * each + program * rest // sharers
    end = (program + 1) * each + (program + 1) * rest // sharers
    return first, tl.minimum(end, total)


@triton.jit
@no_type_check
def sharer_of(index, programs, total):
    """The program whose share contains the index-th entry."""
    return (((index.to(tl.int64) + 1) * sharers_of(programs, total) - 1) // tl.maximum(total, 1)).to(tl.int32)


@triton.jit
@no_type_check
def store_result(results, query, head, there, acc, whole, log, META: tl.constexpr):
    """Store output and lse of the rows in the mask `there`: `whole` is the sum, 1 without keys; `log` its log2, then -∞."""
    dims = tl.arange(0, META.BLOCK_V)
    at = query.to(tl.int64) * results.out_strides.row + head.to(tl.int64) * results.out_strides.head
    tl.store(
        first_row(results.out_ptr, results.batch, results.query_start, 0, results.out_strides)
        + at[:, None]
        + dims[None, :],
        (acc * (1.0 / whole)[:, None]).to(results.out_ptr.dtype.element_ty),
        mask=there[:, None] & (dims < META.DIM_V)[None, :],
    )
    at = query + head.to(tl.int64) * results.lse_strides.head
    lse = first_row(results.lse_ptr, results.batch, results.query_start, 0, results.lse_strides) + at
    tl.store(lse, log * LN_2, mask=there)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def decode_attend(
    tensors,
    lse_ptr,
    part_ptr,
    part_lse_ptr,
    k_desc,
    v_desc,
    cu_q_ptr,
    cu_k_ptr,
    seqlen_q,
    seqlen_k,
    strides,
    lse_batch,
    lse_head,
    scale,
    left,
    right,
    batch,
    heads_kv,
    repeats,
    row_tiles,
    lead,
    META: tl.constexpr,
):
    """A program's share of the list, one job after another; CUT: some share begins or ends within a job.

    DEPENDENT: `decode_combine` may be launched as soon as all programs have started, and itself waits for their end.
    """
    if META.DEPENDENT:
        gdc_launch_dependents()
    BLOCK_M: tl.constexpr = META.BLOCK_M
    BLOCK_N: tl.constexpr = META.BLOCK_N
    BLOCK_D: tl.constexpr = META.BLOCK_D
    BLOCK_V: tl.constexpr = META.BLOCK_V
    jobs = heads_kv * row_tiles
    listed = JobList(
        batch=batch,
        jobs=jobs,
        lead=lead,
        cu_q_ptr=cu_q_ptr,
        cu_k_ptr=cu_k_ptr,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        left=left,
        right=right,
    )
    program = tl.program_id(0)
    _, total = entries_before(program * 0, listed, META)
    index, stop = share_of(program, tl.num_programs(0), total)
    while index < stop:
        number, before = sequence_at(index, listed, META)
        bounds = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, number, META.PACKED)
        at_batch, queries, keys = bounds.batch, bounds.queries, bounds.keys
        query_start, key_start = bounds.query_start, bounds.key_start
        begin, count = tiles_seen(queries, keys, listed, META)
        entries = entries_of(count, lead)
        job = (index - before) // entries
        entry = index - before - job * entries
        after = tl.minimum(entries, entry + stop - index)
        head_kv = job // row_tiles
        rows = (job - head_kv * row_tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
        query = rows // repeats
        head = head_kv * repeats + rows - query * repeats
        there = query < queries
        dims = tl.arange(0, BLOCK_D)
        q_base = first_row(tensors.q, at_batch, query_start, 0, strides.q)
        q_at = query.to(tl.int64) * strides.q.row + head.to(tl.int64) * strides.q.head
        q = tl.load(q_base + q_at[:, None] + dims[None, :], mask=there[:, None] & (dims < META.DIM)[None, :], other=0.0)
        k_rows = Rows(
            base=first_row(tensors.k, at_batch, key_start, head_kv, strides.k),
            desc=k_desc,
            batch=at_batch,
            start=key_start,
            head=head_kv,
            count=keys,
            stride=strides.k.row,
        )
        v_rows = Rows(
            base=first_row(tensors.v, at_batch, key_start, head_kv, strides.v),
            desc=v_desc,
            batch=at_batch,
            start=key_start,
            head=head_kv,
            count=keys,
            stride=strides.v.row,
        )
        acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
        row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
        row_sum = tl.zeros([BLOCK_M], tl.float32)
        for tile in tl.range(begin + tl.maximum(entry - lead, 0), begin + tl.maximum(after - lead, 0)):
            at = tile * BLOCK_N
            k = load_tile(k_rows, at, META.DIM, BLOCK_N, BLOCK_D, False, META.TMA)
            scores = tl.dot(q, tl.trans(k), input_precision=META.PRECISION)  # [BLOCK_M, BLOCK_N]
            # Every tile is masked, whether it hides keys or not: a few instructions, while the next tile is awaited.
            see = sees(
                rows=query[:, None],
                columns=tl.arange(0, BLOCK_N)[None, :],
                keys=keys - at,
                shift=keys - queries - at,
                left=left,
                right=right,
                HAS_LEFT=META.HAS_LEFT,
                HAS_RIGHT=META.HAS_RIGHT,
            )
            scores = tl.where(see, scores, float("-inf"))
            folded = fold(scores, row_max, row_sum, scale, False)
            row_max, row_sum = folded.row_max, folded.sums
            v = load_tile(v_rows, at, META.DIM_V, BLOCK_N, BLOCK_V, False, META.TMA)
            acc = tl.dot(folded.weights.to(v.dtype), v, acc * folded.factor[:, None], input_precision=META.PRECISION)

        empty = row_sum == 0.0  # true for sums above 0, and false for NaN
        whole = tl.where(empty, 1.0, row_sum)
        log = tl.where(empty, float("-inf"), row_max * scale + tl.math.log2(whole))
        results = Results(
            out_ptr=tensors.out,
            out_strides=strides.out,
            lse_ptr=lse_ptr,
            lse_strides=Strides(batch=lse_batch, row=1, head=lse_head),
            batch=at_batch,
            query_start=query_start,
        )
        if META.CUT:
            if (entry > 0) | (after < entries):
                slots = (2 * program + (entry == 0).to(tl.int32)) * BLOCK_M + tl.arange(0, BLOCK_M)
                places = part_ptr + slots[:, None] * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]
                tl.store(places, acc * (1.0 / whole)[:, None], mask=there[:, None])
                tl.store(part_lse_ptr + slots, log, mask=there)
            else:
                store_result(
                    results=results, query=query, head=head, there=there, acc=acc, whole=whole, log=log, META=META
                )
        else:
            store_result(results=results, query=query, head=head, there=there, acc=acc, whole=whole, log=log, META=META)
        index += after - entry


@triton.jit(do_not_specialize=(*COUNTS, "most", "programs"))
@no_type_check
def decode_combine(
    out_ptr,
    lse_ptr,
    part_ptr,
    part_lse_ptr,
    cu_q_ptr,
    cu_k_ptr,
    seqlen_q,
    seqlen_k,
    out_strides,
    lse_batch,
    lse_head,
    left,
    right,
    batch,
    heads_kv,
    repeats,
    row_tiles,
    lead,
    most,
    programs,
    META: tl.constexpr,
):
    """Merge the partial results of one query and head, COLUMNS columns per program and PARTS partial results at a time.

    Only jobs whose keys were divided have any.  `most`: upper bound of the queries of a sequence.  DEPENDENT: launched
    while `decode_attend` runs; before the wait nothing is read that it writes.
    """
    COLUMNS: tl.constexpr = META.COLUMNS
    PARTS: tl.constexpr = META.PARTS
    number = tl.program_id(0) // most
    query = tl.program_id(0) - number * most
    head = tl.program_id(1)
    dims = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    head_kv = head // repeats
    row = query * repeats + head - head_kv * repeats
    job = head_kv * row_tiles + row // META.BLOCK_M
    place = row % META.BLOCK_M
    jobs = heads_kv * row_tiles
    listed = JobList(
        batch=batch,
        jobs=jobs,
        lead=lead,
        cu_q_ptr=cu_q_ptr,
        cu_k_ptr=cu_k_ptr,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        left=left,
        right=right,
    )
    before, total = entries_before(number, listed, META)
    bounds = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, number, META.PACKED)
    at_batch, query_start, queries = bounds.batch, bounds.query_start, bounds.queries
    _, count = tiles_seen(queries, bounds.keys, listed, META)
    entries = entries_of(count, lead)
    begin = before + job * entries
    first = sharer_of(begin, programs, total)
    last = sharer_of(begin + tl.maximum(entries, 1) - 1, programs, total)
    there = (query < queries) & (first < last)
    columns = tl.where(there, META.DIM_V, 0)
    if META.DEPENDENT:
        gdc_wait()
    acc = tl.zeros([COLUMNS], tl.float32)
    row_max = float("-inf")
    row_sum = 0.0
    for part in range(first, tl.where(there, last + 1, first), PARTS):
        program = part + tl.arange(0, PARTS)
        slots = (2 * program + (program == first).to(tl.int32)) * META.BLOCK_M + place
        logs = tl.load(part_lse_ptr + slots, mask=program <= last, other=float("-inf"))
        values = tl.load(
            part_ptr + slots[:, None] * META.BLOCK_V + dims[None, :], mask=(program <= last)[:, None], other=0.0
        )
        new_max = tl.maximum(row_max, tl.max(logs, 0))
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.math.exp2(logs - pivot)
        factor = tl.math.exp2(row_max - pivot)
        acc = acc * factor + tl.sum(values * weights[:, None], 0)
        row_sum = row_sum * factor + tl.sum(weights, 0)
        row_max = new_max
    empty = row_sum == 0.0
    whole = tl.where(empty, 1.0, row_sum)
    log = tl.where(empty, float("-inf"), row_max + tl.math.log2(whole))
    at = query.to(tl.int64) * out_strides.row + head.to(tl.int64) * out_strides.head
    tl.store(
        first_row(out_ptr, at_batch, query_start, 0, out_strides) + at + dims,
        (acc * (1.0 / whole)).to(out_ptr.dtype.element_ty),
        mask=dims < columns,
    )
    at = query + head.to(tl.int64) * lse_head
    lse = first_row(lse_ptr, at_batch, query_start, 0, Strides(batch=lse_batch, row=1, head=lse_head)) + at
    tl.store(lse + dims * 0, log * LN_2, mask=(dims == 0) & (dims < columns))  # by the first program of the head
