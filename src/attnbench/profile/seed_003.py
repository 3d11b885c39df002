"""The table of seed 003 and its conclusions: one column per capture, of any workload."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from attnbench.profile import categories as kinds
from attnbench.profile.capture import Capture, split_range
from attnbench.profile.sums import category_ms, percent
from attnbench.profile.table import Table

DIRECT_COPY, FUNCTOR_ADD = "direct_copy_kernel_cuda", "CUDAFunctor_add"
TITLES = {
    "fa": "FA2",
    "fa2": "FA2",
    "sdpa-flash": "FA2",
    "flash-attn-2": "FA2",
    "sage2": "Sage2",
    "sparge": "Sparge (fp16)",
    "sparge_fp8": "Sparge (fp8)",
    "sparge-fp8": "Sparge (fp8)",
}
"The seed's columns by the name of a capture: attnbench's (``video_sdpa-flash``) or the seed's (``profile_fa``)."


def table(captures: Sequence[Capture]) -> Table:
    """Return seed 003's table, one column per capture.

    As in the seed, the percentage is of all kernel time, and the total is the NVTX range (its GPU time if known), else
    the window, else all kernel time.
    """
    columns, titles = [_seed_003(capture) for capture in captures], _titles(captures)
    rows = tuple((name, *(column[name] for column in columns)) for name in (columns[0] if columns else ()))
    notes = tuple(_reading(captures, [title.removesuffix(" (baseline)") for title in titles]))
    return Table(title="time of kernels", heads=("Metrics", *titles), rows=rows, notes=notes)


def _titles(captures: Sequence[Capture]) -> list[str]:
    """Return the seed's column names, and other captures' own; all their own if two would get the same name."""
    names = [capture.name for capture in captures]
    titles = [TITLES.get(name.removeprefix("profile_").removeprefix("video_"), name) for name in names]
    if len(set(titles)) < len(titles):
        return names
    return [f"{title} (baseline)" if title == "FA2" and not place else title for place, title in enumerate(titles)]


def _reading(captures: Sequence[Capture], names: Sequence[str]) -> Iterator[str]:
    """Yield how each column differs from the first, as the seed's text does."""
    base = captures[0] if captures else None
    attention = category_ms(base, kinds.ATTENTION) if base else None
    total = _total_ms(base) if base else None
    if base is None or not attention or not total:
        return
    for name, other in zip(names[1:], captures[1:], strict=True):
        own, all_of_it = category_ms(other, kinds.ATTENTION), _total_ms(other)
        if not own or not all_of_it:
            continue
        moved = sum(_word_ms(other, word) - _word_ms(base, word) for word in (DIRECT_COPY, FUNCTOR_ADD))
        prepared = (category_ms(other, kinds.PREPARATION) or 0.0) - (category_ms(base, kinds.PREPARATION) or 0.0)
        yield (
            f"{name} beside {names[0]}: attention {_change(own - attention)}, its preparation "
            f"{_change(prepared)}, these copies and additions {_change(moved)}, total {_change(all_of_it - total)} "
            f"({total / all_of_it:.2f}x)"
        )
    if any(capture.api for capture in captures):
        yield "times of the CUDA API (cudaLaunchKernel, cudaStreamSynchronize) are the CPU's and in none of these rows"


def _word_ms(capture: Capture, word: str) -> float:
    return sum(row.total_ms or 0.0 for row in capture.kernels if word in row.name)


def _change(ms: float) -> str:
    return f"{ms / 1e3:+.3g} s" if abs(ms) >= 100 else f"{ms:+.3g} ms"


def _seed_003(capture: Capture) -> dict[str, str | None]:
    attention = category_ms(capture, kinds.ATTENTION) or 0.0 if capture.kernel_ms is not None else None
    found: dict[str, str | None] = {
        "Attn (%)": _with(percent(attention, capture.kernel_ms), "%"),
        "Attn (s)": _with(None if attention is None else attention / 1e3, "s"),
    }
    for word in (DIRECT_COPY, FUNCTOR_ADD):
        rows = [row for row in capture.kernels if word in row.name]
        times = [row.total_ms for row in rows if row.total_ms is not None]
        found[f"{word} (times)"] = f"{sum(row.calls for row in rows):,}"
        found[f"{word} (ms)"] = _with(sum(times) if times or not rows else None, "ms")
    total = _total_ms(capture)
    found["Total (s)"] = _with(None if total is None else total / 1e3, "s")
    return found


def _total_ms(capture: Capture) -> float | None:
    projected = [row.gpu_ms for row in capture.ranges if row.gpu_ms is not None]
    # Ranges nest: the longest contains the others of one stack.  attnbench's are disjoint, one per backend and case.
    ours = [row.gpu_ms for row in capture.ranges if row.gpu_ms is not None and split_range(row.name)[0]]
    outer = sum(ours) if ours else max(projected, default=None)
    printed = max((row.host_ms for row in capture.ranges if row.host_ms is not None), default=None)
    found = (outer, capture.window_ms, printed, capture.kernel_ms)
    return next((one for one in found if one is not None), None)


def _with(value: float | None, unit: str) -> str | None:
    """Return a number as the seed writes it: 53.7%, 1,045ms; smaller ones keep three digits."""
    if value is None:
        return None
    if value >= 1000:
        return f"{value:,.0f}{unit}"
    if value >= 10 or value == 0:
        return f"{value:.1f}{unit}"
    digits = f"{value:.{2 - math.floor(math.log10(value))}f}"  # never an exponent: the seed's spreadsheets have none
    return f"{digits.rstrip('0').rstrip('.')}{unit}"
