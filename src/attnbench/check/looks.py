"""Limits for the inspections ("looks") of a launch's samples, and when a limit counts as broken.

Limits are wide, so that a loaded machine makes no honest launch fail.  Each limit compares two series of interleaved
times by their smallest values (`stats.ranks`), because pauses lengthen both.  A few looks can raise a suspicion; more
follow until the probability that the limit is kept is below one in a million.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from attnbench.stats.ranks import chance_of_lead

FEW = 12
"""Looks after which an order that could well be chance clears a launch."""
CHANCE = 1e-6
"""Accepted probability of calling a launch misleading that keeps a limit."""
SLOWER = {"cpu": 1.5, "cuda": 1.25}
"""Limit of a call on new data, in ordinary samples; honest kernels on an H200 took 0.93 to 1.03."""
RECORDED = 2.0
"""Limit of the same call in recorded samples: the machine may change between the two, a GPU's clock by a third."""
COPIES = 10.0
"""Limit of `reload`, `reset` and `outputs`, in plain copies of the tensors concerned: layouts differ."""
LEFT_SLACK_MS = 0.1
"""Always allowed for work that `reload` leaves to a GPU: two synchronisations with an idle device."""
CACHES = 4.0
"""Allowance, in such copies, for a call whose tensors have left the caches."""
SHARE = 0.5
"""Share of a sample on new data that untimed functions may always take, and by which outputs may come late."""
BACKWARD = 0.2
"""Least time of a backward as a share of its forward: it has at least as many matrix products."""
SLACK_MS = {"cpu": 0.03, "cuda": 0.01}
"""Always allowed for a call: a cold instruction cache, the resolution of a timer."""
HOST_SLACK_MS = {"cpu": 0.1, "cuda": 0.5}
"""Always allowed for untimed functions: Python, and on a GPU the first launches after a synchronisation."""


@dataclass(slots=True, kw_only=True)
class Look:
    """Times of one look, ms."""

    recorded: float | None
    "mean of the last two samples before it; None where the timer of the group cannot be used in a look"
    repeated: float
    "a call: mean of the last two of a few in a row"
    ordinary: float
    "a call with the caches in the same state as for `new`"
    new: float
    "the sample on new data"
    untimed: dict[str, float] = field(default_factory=dict)
    "of reload, reset, outputs with a copy of them, and in mode bwd of the forward"
    first: float = 0.0
    "of reading and copying the outputs right after the call; `untimed` has the time of a second read"
    whole: float = 0.0
    "from when the call could start until its outputs had been read"
    copies: float = 0.0
    "of copying all inputs and outputs"
    output_copies: float = 0.0
    left: tuple[float, float] | None = None
    "on a GPU, its remaining work after a reload, and after copies of all inputs and outputs, had returned"
    total: float = 0.0
    """from when loading of new data started until its outputs had been read; on a GPU, the untimed functions before the call
    plus the call and the read, or what `reload` left plus the same, if longer"""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A limit that looks suggest is broken."""

    words: str
    certain: bool


@dataclass(frozen=True, slots=True)
class _Rule:
    """A limit: `above` must not be larger than `below`, look by look."""

    above: list[float]
    below: list[float]
    words: str


def suspicion(looks: Sequence[Look], kind: str) -> Suspicion | None:
    """Return the limit that looks show to be broken: one that is certain, or else one that is suspected.

    Args:
        looks: all so far, at least one.
        kind: of the device: cpu or cuda.
    """
    found = [suspected for rule in _rules(looks, kind) if (suspected := _judged(rule))]
    return next((one for one in found if one.certain), found[0] if found else None)


def _judged(rule: _Rule) -> Suspicion | None:
    count, chance = len(rule.above), chance_of_lead(rule.above, rule.below)
    if chance == 1.0 or (count > FEW and chance > 1 / count):
        return None
    return Suspicion(rule.words, chance < CHANCE)


def _rules(looks: Sequence[Look], kind: str) -> Iterator[_Rule]:
    cuda, slack = kind == "cuda", SLACK_MS[kind]
    new = [look.new for look in looks]
    call, first = min(new), statistics.median(look.first for look in looks)
    reading = _reading(looks)
    # Copying the outputs of a short call takes longer than the call; the time of a copy is not lateness.
    is_late = first - reading > call + HOST_SLACK_MS[kind]
    late = f"unfinished work: a call returns after {_shown(call)}, its outputs are there {_shown(first)} later"
    if cuda:
        yield _Rule(
            [look.first - SHARE * call - slack for look in looks], [look.untimed["outputs"] for look in looks], late
        )
        yield _Rule([(look.whole - reading - slack) / SLOWER[kind] for look in looks], new, late)
    yield from _untimed(looks, call, kind)
    whole = [(look.new if cuda else look.whole - reading) - slack for look in looks]
    # A launch may also detect a look by a pause, or by the caller of `outputs`. Between consecutive recorded samples
    # there is neither. Their caches are warm, so the time of copies is subtracted.
    cold = CACHES * min(look.copies for look in looks)
    beside = "on data it has"
    series = [
        (whole, [look.ordinary for look in looks], SLOWER[kind], beside),
        ([one - cold for one in whole], [look.repeated for look in looks], SLOWER[kind], beside),
    ]
    # By its callers, or by a call count, a launch may tell even those from samples that are recorded.
    recorded = [(look, look.recorded) for look in looks if look.recorded is not None]
    if recorded:
        above = [(look.new if cuda else look.whole - reading) - slack - cold for look, _ in recorded]
        series.append((above, [ms for _, ms in recorded], RECORDED, "a recorded one"))
    for above, below, times, other in series:
        words = (
            f"a call on data it has not seen takes {_shown(call)}, {other} "
            f"{_shown(min(below))}: its samples are not the time of its work"
        )
        yield _Rule([one / times for one in above], below, late if is_late and not cuda else words)
    yield from _total(looks, kind)


def _reading(looks: Sequence[Look]) -> float:
    """Time of reading the outputs, ms: the quickest of all looks, because a pause in a second read must not let off a first.

    If all reads compute, the limit of `outputs` is broken.
    """
    return min(min(look.first, look.untimed["outputs"]) for look in looks)


def _total(looks: Sequence[Look], kind: str) -> Iterator[_Rule]:
    """Limits of loading new data and computing on it, together, whichever function or thread does what.

    A launch that works in `reload` in some looks, and in the call in others, keeps each limit of its own in one of them.
    So does a thread that works while the machine has preempted this one.
    """
    names = looks[0].untimed.keys() & {"reload", "reset"}
    if not names:
        return
    copies, reading = min(look.copies for look in looks), _reading(looks)
    allowed = reading + SLACK_MS[kind] + len(names) * HOST_SLACK_MS[kind] + (CACHES + len(names) * COPIES) * copies
    for times, other, known in (
        (SLOWER[kind], "a call on data it has", [look.repeated for look in looks]),
        (RECORDED, "a recorded one", [look.recorded for look in looks]),
    ):
        pairs = [(look, ms) for look, ms in zip(looks, known, strict=True) if ms is not None]
        if not pairs:
            continue
        total, call = min(look.total for look, _ in pairs) - reading, min(ms for _, ms in pairs)
        words = (
            f"from loading data it has not seen until its outputs are there a launch takes {_shown(total)}, "
            f"{other} {_shown(call)}, a copy of all inputs and outputs {_shown(copies)}: its samples are not the time "
            "of its work"
        )
        forwards = [min(look.untimed.get("forward", 0.0), (HOST_SLACK_MS[kind] + ms) / BACKWARD) for look, ms in pairs]
        yield _Rule(
            [
                (look.total - forward - allowed) / (times + len(names) * SHARE)
                for (look, _), forward in zip(pairs, forwards, strict=True)
            ],
            [ms for _, ms in pairs],
            words,
        )


def _untimed(looks: Sequence[Look], call: float, kind: str) -> Iterator[_Rule]:
    """Limits of untimed functions: no work may be done there."""
    host_slack = HOST_SLACK_MS[kind]
    if "forward" in looks[0].untimed:
        forward = [look.untimed["forward"] for look in looks]
        yield _Rule(
            [BACKWARD * spent - host_slack for spent in forward],
            [look.new for look in looks],
            f"a backward takes {_shown(call)}, its forward {_shown(min(forward))}: the work is done in the forward",
        )
    names = sorted(looks[0].untimed.keys() - {"forward"})
    # All together too: three of them could each do a third of the work.
    for chosen in [[name] for name in names] + [names] * (len(names) > 1):
        spent = [sum(look.untimed[name] for name in chosen) for look in looks]
        copies = [sum(look.output_copies if name == "outputs" else look.copies for name in chosen) for look in looks]
        what = "the outputs" if chosen == ["outputs"] else "all inputs and outputs"
        takes = f"{chosen[0]} takes" if len(chosen) == 1 else f"{' and '.join(chosen)} together take"
        yield _Rule(
            [(one - SHARE * call - len(chosen) * host_slack) / COPIES for one in spent],
            copies,
            f"{takes} {_shown(min(spent))}, a copy of {what} {_shown(min(copies))}, a "
            f"call {_shown(call)}: work is done outside the sample",
        )
    if left := [look.left for look in looks if look.left]:
        reloaded, copied = ([times[side] for times in left] for side in (0, 1))
        yield _Rule(
            [(one - SHARE * call - LEFT_SLACK_MS) / COPIES for one in reloaded],
            copied,
            f"what reload leaves to the device takes {_shown(min(reloaded))}, copies of all inputs and outputs "
            f"{_shown(min(copied))}, a call {_shown(call)}: work is done outside the sample",
        )


def _shown(ms: float) -> str:
    return f"{ms:.3g} ms" if ms >= 1 else f"{1e3 * ms:.3g} µs"
