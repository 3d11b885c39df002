"""What `scale.py` measured, as the docs show it: sweeps on one GPU and two, Ray, and a busy neighbour GPU.

    python benchmarks/scale_tables.py FILE...    the same figures of `scaled.json` files, whose rounds add up

A file keeps what was measured, and every figure is worked out here. Two sides of a comparison are runs after each other:
A B B A has the pairs A B and A B. A ratio is the geometric mean over all pairs, with Student's interval over them; beside it
stands the A/A spread, the ratio of the two A of a round. A bar is reached, or missed, if the whole interval is on that side
of it; else that is not decided.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.stats.ratio import RatioEstimate, paired_ratio
from attnbench.stats.replicates import combine_replicates

HEAD = ("what", "measured", "wanted")
LEAST_SPEEDUP, MOST_APART, MOST_OF_RAY = 1.8, 0.5, 3.0
"Of two GPUs over one; per cent of a ratio beside a busy neighbour; per cent that Ray takes longer on one GPU."
LEAST_GROUPS = 40
"Of a sweep that decides on these bars; the neighbour's has ten."
NOT_DECIDED = "not decided"

Told = Mapping[str, Any]
"A run as `scale.py` writes it."
ROW = ("group", "backend", "gpu", "status", "median_ms", "ratio")


def rows(paths: Sequence[Path]) -> list[list[str]]:
    """A row for each figure that the files have."""
    runs = [run for path in paths for run in read(path)["runs"]]
    parts = {part: [run for run in runs if run["part"] == part] for part in ("sweep", "neighbour", "ray", "turns")}
    return [
        [what, measured, wanted]
        for part, of in ((sweep, "sweep"), (beside, "neighbour"), (ray, "ray"), (turns, "turns"))
        if parts[of]
        for what, measured, wanted in part(parts[of])
    ]


Rows = Iterator[tuple[str, str, str]]


def sweep(runs: Sequence[Told]) -> Rows:
    """Wall time of one GPU over that of two: every pair of runs of a round, as a run takes minutes and there are few."""
    for engine, name in (("local", ""), ("ray", " through Ray")):
        found = [
            (
                [run for run in of if run["gpus"] == 1],
                [run for run in of if run["gpus"] > 1 and run["engine"] == engine],
            )
            for of in rounds(runs)
        ]
        found = [(one, two) for one, two in found if one and two]
        if not found:
            continue
        ratios, steady = (
            [a[key] / b[key] for one, two in found for a in one for b in two] for key in ("wall_s", "steady_s")
        )
        verdict = decided(min(ratios), max(ratios), LEAST_SPEEDUP, least=True)
        if any(run["groups"] < LEAST_GROUPS for one, two in found for run in (*one, *two)):
            verdict = NOT_DECIDED
        once = ", one run of each" if len(ratios) == 1 else ""
        spreads = [spread_of([run["wall_s"] for run in one]) for one, _ in found if len(one) > 1]
        spread = f"; one GPU twice: {', '.join(spreads)}" if spreads else ""
        walls = "; ".join(f"{seconds(one)} on one GPU, {seconds(two)} on two" for one, two in found)
        yield (
            f"sweep of {found[0][1][0]['groups']} groups{name}, start of workers included",
            f"{walls}: {times(ratios)}{spread}",
            f"at least {LEAST_SPEEDUP}x: {verdict}{once}",
        )
        yield "the same, from the first group's end to the last's", times(steady), ""
    moved = [
        100 * abs(other / ratio - 1)
        for of in rounds(runs)
        for a in (run for run in of if run["gpus"] == 1)
        for b in (run for run in of if run["gpus"] > 1 and run["engine"] == "local")
        for ratio, other in common(a, b, same_gpu=True).values()
    ]
    if moved:
        yield "ratios on one GPU while the other measures, against those alone", amounts(moved), ""


def beside(runs: Sequence[Told]) -> Rows:
    """Ratios of the groups beside a busy neighbour over those alone."""
    pairs = list(pairs_of(runs, lambda run: bool(run["beside"])))
    found: dict[str, list[RatioEstimate]] = {}
    for alone, busy in pairs:
        for group, (ratio, other) in common(alone, busy).items():
            found.setdefault(group, []).append(paired_ratio({0: other}, {0: ratio}))
    groups = [combine_replicates(each) for each in found.values()]
    # A group that has a ratio in some of the runs only has an interval over fewer pairs, and is shown with it.
    verdicts = [
        decided(*distances(one), MOST_APART, least=False) if len(each) > 1 else NOT_DECIDED
        for one, each in zip(groups, found.values(), strict=True)
    ]
    counts = [f"{verdicts.count(one)} {one}" for one in ("reached", "**missed**", NOT_DECIDED) if one in verdicts]
    verdict = counts[0].split(" ", 1)[1] if len(counts) == 1 else ", ".join(counts)
    again = [percent(a, b) for a, b in both_alone(runs)]
    furthest = max(groups, key=lambda one: abs(one.ratio - 1))
    yield (
        f"ratios of {len(groups)} groups beside a busy neighbour GPU against those alone, {len(pairs)} "
        + ("pairs of runs" if len(pairs) > 1 else "pair of runs"),
        f"furthest {signed(furthest)}; {amounts([100 * abs(one.ratio - 1) for one in groups])}",
        f"at most {MOST_APART:g} %: {verdict}",
    )
    yield "their mean over the groups", signed(combine_replicates(groups)), ""
    if again:
        yield "ratios alone against alone, within a round", amounts([abs(one) for one in again]), ""


def ray(runs: Sequence[Told]) -> Rows:
    """What a sweep on one GPU takes through Ray, over the local engine."""
    pairs = list(pairs_of(runs, lambda run: run["engine"] == "ray"))
    groups = min(run["groups"] for run in runs)
    for name, key in (
        (f"{groups} groups on one GPU through Ray, against the local engine", "wall_s"),
        ("the same, from the first group's end to the last's", "steady_s"),
    ):
        found = combine_replicates([paired_ratio({0: through[key]}, {0: local[key]}) for local, through in pairs])
        twice = [100 * (b[key] / a[key] - 1) for a, b in repeated(runs, lambda run: run["engine"] == "local")]
        verdict = NOT_DECIDED
        if groups >= LEAST_GROUPS and found.ci_low is not None and found.ci_high is not None:
            verdict = decided(100 * (found.ci_low - 1), 100 * (found.ci_high - 1), MOST_OF_RAY, least=False)
        yield (
            name,
            f"{signed(found)}; local twice: {', '.join(f'{one:+.1f} %' for one in twice)}",
            f"at most {MOST_OF_RAY:g} % over {LEAST_GROUPS} groups: {verdict}" if key == "wall_s" else "",
        )
    apart = [abs(percent(*pair)) for a, b in pairs for pair in common(a, b).values()]
    local = [
        abs(percent(*pair))
        for a, b in repeated(runs, lambda run: run["engine"] == "local")
        for pair in common(a, b).values()
    ]
    yield "ratios through Ray against local ones", amounts(apart), ""
    yield "ratios of two local runs", amounts(local), ""


def turns(runs: Sequence[Told]) -> Rows:
    """What a group takes through Ray, over the local engine's turn with it; and so a sweep, starts included.

    The interval of a sweep is that of its groups, with the starts that are worst and best for Ray.
    """
    both = [turn for run in runs for turn in run["turns"][1:]]  # the first group starts the workers
    local, through = ([turn[place] for turn in both] for place in (1, 2))
    found = combine_replicates([paired_ratio({0: b}, {0: a}) for a, b in zip(local, through, strict=True)])
    more = 1e3 * statistics.median(b - a for a, b in zip(local, through, strict=True))
    yield (
        f"{len(both)} groups on one GPU through Ray, each in turn with the local engine",
        (f"{signed(found)}; {more:+.0f} ms of {statistics.mean(local):.2f} s"),
        "",
    )
    starts = {
        engine: [run["first_s"] for run in runs if run["engine"] == engine and run["groups"] == 1]
        for engine in ("local", "ray")
    }
    if not all(starts.values()) or found.ci_low is None or found.ci_high is None:
        return
    yield (
        "until the first group's end",
        "; ".join(f"{engine} {' and '.join(f'{one:.1f} s' for one in each)}" for engine, each in starts.items()),
        "",
    )
    rest = (LEAST_GROUPS - 1) * statistics.mean(local)
    mean, low, high = (
        100 * ((b + rest * ratio) / (a + rest) - 1)
        for ratio, a, b in (
            (found.ratio, statistics.mean(starts["local"]), statistics.mean(starts["ray"])),
            (found.ci_low, max(starts["local"]), min(starts["ray"])),
            (found.ci_high, min(starts["local"]), max(starts["ray"])),
        )
    )
    yield (
        f"so a sweep of {LEAST_GROUPS} such groups through Ray, against the local engine",
        f"{mean:+.2f} % ({low:+.2f} to {high:+.2f})",
        f"at most {MOST_OF_RAY:g} %: {decided(low, high, MOST_OF_RAY, least=False)}",
    )


# ── pairs of runs ──────────────────────────────────────────────────────────────────────────────────


def pairs_of(runs: Sequence[Told], other: Any) -> Iterator[tuple[Told, Told]]:
    """Runs after each other of which one is `other`, within a round, that one second; a run is in one pair."""
    for round_ in rounds(runs):
        for first, second in zip(round_[::2], round_[1::2], strict=False):
            if other(first) != other(second):
                yield (second, first) if other(first) else (first, second)


def repeated(runs: Sequence[Told], same: Any) -> Iterator[tuple[Told, Told]]:
    """First and last run of one kind within a round."""
    for round_ in rounds(runs):
        alike = [run for run in round_ if same(run)]
        if len(alike) > 1:
            yield alike[0], alike[-1]


def rounds(runs: Sequence[Told]) -> list[list[Told]]:
    """Runs by their round, in their order."""
    found: dict[int, list[Told]] = {}
    for run in runs:
        found.setdefault(run["round"], []).append(run)
    return list(found.values())


def both_alone(runs: Sequence[Told]) -> Iterator[tuple[float, float]]:
    """The two ratios of each group that was measured alone twice in a round."""
    for first, last in repeated(runs, lambda run: not run["beside"]):
        yield from common(first, last).values()


def common(one: Told, other: Told, *, same_gpu: bool = False) -> dict[str, tuple[float, float]]:
    """Ratios of both runs, by group."""
    a, b = by_group(one), by_group(other)
    there = [group for group in a if group in b and (not same_gpu or a[group]["gpu"] == b[group]["gpu"])]
    return {group: (a[group]["ratio"], b[group]["ratio"]) for group in there}


def by_group(run: Told) -> dict[str, dict[str, Any]]:
    """Rows with a ratio: that of the backend which is not the baseline."""
    found = [dict(zip(ROW, row, strict=True)) for row in run["rows"]]
    return {row["group"]: row for row in found if row["ratio"] is not None}


# ── figures ────────────────────────────────────────────────────────────────────────────────────────


def decided(low: float, high: float, bar: float, *, least: bool) -> str:
    """What an interval says of a bar, which is the least or the most that is accepted."""
    if (low >= bar) if least else (high <= bar):
        return "reached"
    return "**missed**" if ((high < bar) if least else (low > bar)) else NOT_DECIDED


def distances(one: RatioEstimate) -> tuple[float, float]:
    """Least and greatest distance from 1 within an interval, in per cent."""
    assert one.ci_low is not None
    assert one.ci_high is not None
    low, high = 100 * (one.ci_low - 1), 100 * (one.ci_high - 1)
    return (0.0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def signed(one: RatioEstimate) -> str:
    """By how many per cent a ratio is over 1, with its interval."""
    if one.ci_low is None or one.ci_high is None:
        return f"{100 * (one.ratio - 1):+.2f} %"
    return f"{100 * (one.ratio - 1):+.2f} % ({100 * (one.ci_low - 1):+.2f} to {100 * (one.ci_high - 1):+.2f})"


def percent(one: float, other: float) -> float:
    """By how many per cent the other is more."""
    return 100 * (other / one - 1)


def amounts(per_cent: Sequence[float]) -> str:
    """How far ratios of the same groups lie apart."""
    if not per_cent:
        return "none"
    return f"median {statistics.median(per_cent):.2f} %, most {max(per_cent):.2f} % of {len(per_cent)}"


def spread_of(values: Sequence[float]) -> str:
    """By how many per cent the greatest is over the least."""
    return f"{100 * (max(values) / min(values) - 1):.1f} % apart"


def seconds(runs: Sequence[Told]) -> str:
    """Wall times."""
    return " and ".join(f"{run['wall_s']:.1f} s" for run in runs)


def times(ratios: Sequence[float]) -> str:
    """A speed-up of one pair of runs, or the range of several."""
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return f"**{low}x**" if low == high else f"**{low} to {high}x**"


# ── files ──────────────────────────────────────────────────────────────────────────────────────────


def read(path: Path) -> dict[str, Any]:
    """A file of `scale.py`."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def text(told: Mapping[str, Any]) -> str:
    """The same as text: a line for each row."""
    lines = [f'"environments": {json.dumps(told["environments"], indent=1)}']
    runs = []
    for run in told["runs"]:
        head = json.dumps({key: value for key, value in run.items() if key != "rows"})
        body = ",\n  ".join(json.dumps(row) for row in run["rows"])
        runs.append(f'{head[:-1]}, "rows": [\n  {body}]}}')
    return "{\n" + ",\n".join([*lines, '"runs": [\n' + ",\n".join(runs) + "]"]) + "\n}\n"


def environments(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Where it was measured."""
    return [one for path in paths for one in read(path)["environments"]]


def said(paths: Sequence[Path]) -> str:
    """All figures as lines, and what the yardsticks of two GPUs say."""
    spread = [line for path in paths for run in read(path)["runs"] for line in run.get("spread", ())]
    return "\n".join(["; ".join(filter(None, row)) for row in rows(paths)] + spread)


if __name__ == "__main__":
    print(said([Path(word) for word in sys.argv[1:]]))
