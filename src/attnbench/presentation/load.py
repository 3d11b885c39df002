"""The result of a load as tables of texts: latency over rate, and the outcome of requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnbench.presentation import figures
from attnbench.store.load_file import RANDOM, Highest, LoadRun, Point, Spread, rate_text

NOT_A_SUBMISSION = (
    "The generator of server and offline is MLPerf's LoadGen, and 80 ms its limit for DLRMv3; weights and data are not "
    "MLPerf's: this is no MLPerf result."
)
ASKED = "asked/s"
"Title of the column that distinguishes loads of one scenario."
ENOUGH = 100
"Fewest requests of which one may be late if 99 % must be in time."
NUMBER = r"(?<![A-Za-z\d.])[+-]?\d+(\.\d+)?(e[+-]?\d+)?"
"Numbers of a note; the 99 of p99 is none. The first is the one that says how bad it is."
LATE_MS, RATE_OFF = 1.0, 0.01
"Deviation of the generator itself above which a note is given."


@dataclass(frozen=True, slots=True)
class Table:
    """A heading, then rows with as many texts."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]


def title_of(run: LoadRun) -> str:
    """Describe in one line what was loaded."""
    settings = run.settings
    pool = f"for {100 * float(settings.get('pool_share', 0)):g} % of what all users need"
    if pages := settings.get("pool_pages"):
        pool = f"of {pages} pages"
    cache = f"pool {pool}" if settings.get("cache") else "no cache"
    return (
        f"{run.workload}, model {run.model} on {run.environment.gpu or run.device}, {settings.get('users')} users, "
        f"{settings.get('candidates')} candidates, batches up to {settings.get('max_batch')}, {cache}"
    )


def tables(run: LoadRun) -> list[Table]:
    """Return the tables: latency over rate; its parts; requests and the cache; AUC of the tasks, if labelled."""
    found = [_latency(run), _parts(run), _requests(run), *([_auc(run)] if any(one.auc for one in run.points) else [])]
    return [_without_empty(one) for one in found]


def _latency(run: LoadRun) -> Table:
    slos = [one.slo_ms for one in run.points[0].goodput] if run.points else []
    heading = [
        "load",
        ASKED,
        "offered/s",
        "answered/s",
        "p50 ms",
        "p90",
        "p95",
        "p99",
        "p99.9",
        "max",
        *(f"goodput/s, {slo:g} ms" for slo in slos),
        *(f"within {slo:g} ms %" for slo in slos),
    ]
    rows = []
    for point in run.points:
        rows.append(
            [
                point.scenario,
                figures.plain(point.asked_rate, 4),
                figures.plain(point.offered_rate, 4),
                figures.plain(point.achieved_rate, 4),
                *_percentiles(point.latency),
                *(figures.plain(one.rate, 4) for one in point.goodput),
                *(f"{100 * one.share:.1f}" for one in point.goodput),
            ]
        )
    return Table("latency from the scheduled time", heading, rows)


def _percentiles(spread: Spread | None) -> list[str]:
    if spread is None:
        return [""] * 6
    return [figures.plain(one) for one in (spread.p50, spread.p90, spread.p95, spread.p99, spread.p999, spread.max)]


def _parts(run: LoadRun) -> Table:
    heading = [
        "load",
        ASKED,
        "queue p50 ms",
        "queue p99",
        "service p50",
        "service p99",
        "host p50",
        "host p99",
        "GPU p50",
        "GPU p99",
        "mean batch",
        "late p99",
    ]
    rows = []
    for point in run.points:
        sizes = point.batch_size
        row = [point.scenario, figures.plain(point.asked_rate, 4)]
        for spread in (point.queue, point.service, point.host, point.device):
            row += [figures.plain(spread.p50), figures.plain(spread.p99)] if spread else ["", ""]
        row += [
            figures.plain(sum(sizes) / len(sizes)) if sizes else "",
            figures.plain(point.late.p99) if point.late else "",
        ]
        rows.append(row)
    return Table("where the time goes: queue and service of a request, host and GPU of a batch", heading, rows)


def _requests(run: LoadRun) -> Table:
    heading = [
        "load",
        ASKED,
        "mean gap s",
        "issued",
        "answered",
        "refused",
        "open at last arrival",
        "split batches",
        "tokens",
        "hit %",
        "host hit %",
        "missed %",
        "evicted users",
    ]
    rows = []
    for point in run.points:
        counts = point.cache
        rows.append(
            [
                point.scenario,
                figures.plain(point.asked_rate, 4),
                _mean_gap(run, point),
                str(point.issued),
                str(point.answered),
                str(sum(point.refused.values())),
                str(point.backlog),
                str(point.splits),
                str(counts.get("tokens", "")),
                *(_share(counts, name) for name in ("hit", "host_hit", "missed")),
                str(counts.get("evicted_users", "")),
            ]
        )
    return Table("requests, and tokens of history in the cache", heading, rows)


def _mean_gap(run: LoadRun, point: Point) -> str:
    """Seconds between two requests of one user, where users return after gaps: all rates have the same users."""
    users = run.settings.get("users")
    return figures.plain(users / point.asked_rate) if point.scenario == "gaps" and users and point.asked_rate else ""


def _auc(run: LoadRun) -> Table:
    rows = [
        [
            point.scenario,
            figures.plain(point.asked_rate, 4),
            one.task,
            "" if one.auc is None else f"{one.auc:.4f}",
            str(one.positive),
            str(one.negative),
        ]
        for point in run.points
        for one in point.auc
    ]
    heading = ["load", ASKED, "task", "AUC", "with the action", "without"]
    return Table("area under the ROC curve of each task, over the candidates of all answered requests", heading, rows)


def _share(counts: Mapping[str, int], name: str) -> str:
    total = counts.get("tokens", 0)
    return f"{100 * counts.get(name, 0) / total:.1f}" if total else ""


def _without_empty(table: Table) -> Table:
    kept = [place for place in range(len(table.heading)) if any(row[place] for row in table.rows)]
    return Table(
        table.title, [table.heading[place] for place in kept], [[row[place] for place in kept] for row in table.rows]
    )


def notes(run: LoadRun) -> list[str]:
    """Return what a reader has to know in addition to the tables."""
    found = list(run.notes)
    same: dict[str, list[tuple[str, str]]] = {}
    "label and text of the notes that differ in their numbers alone, a search for a rate makes a dozen loads"
    for point in run.points:
        label = point.scenario + (f" {rate_text(point.asked_rate)}/s" if point.asked_rate is not None else "")
        found += [f"{label}: {count} refused: {reason}" for reason, count in point.refused.items()]
        for text in (*_of_generator(point), *_of_order(point), *_of_capacity(point), *point.notes):
            same.setdefault(re.sub(NUMBER, "", text), []).append((label, text))
    for those in same.values():
        label, text = max(those, key=lambda one: _first_number(one[1]))
        more = len(those) - 1
        found.append(f"{label}{f' and {more} more load' * (more > 0)}{'s' * (more > 1)}: {text}")
    if any(point.auc for point in run.points) and run.settings.get("weights") == RANDOM:
        found.append("weights are random: an AUC says nothing of a model")
    if any(point.loadgen for point in run.points):
        found.append(NOT_A_SUBMISSION)
    return found


def _first_number(text: str) -> float:
    number = re.search(NUMBER, text)
    return 0.0 if number is None else abs(float(number[0]))


def _of_generator(point: Point) -> list[str]:
    found = []
    if point.late is not None and (point.late.p99 or point.late.max or 0.0) > LATE_MS:
        found.append(f"the generator was late, {_worst(point.late)} ms: the machine had no core free for it")
    whole = not point.interrupted  # no rate was requested for a part of the schedule
    if whole and point.asked_rate and point.offered_rate and abs(point.offered_rate / point.asked_rate - 1) > RATE_OFF:
        found.append(
            f"offered {100 * (point.offered_rate / point.asked_rate - 1):+.1f} % from the rate asked for, "
            f"{rate_text(point.offered_rate)}/s"
        )
    return found


def _of_order(point: Point) -> list[str]:
    count = point.cache.get
    if point.scenario != "offline" or not count("evicted_users") or 2 * count("missed", 0) < count("tokens", 0):
        return []
    return [
        "LoadGen repeats one order of all users, the worst for a cache that evicts the least recently used; "
        "--pool-share 1 holds all"
    ]


def _worst(spread: Spread) -> str:
    """The 99th percentile, or the maximum for a series too short for it."""
    return f"p99 {figures.plain(spread.p99)}" if spread.p99 is not None else f"at most {figures.plain(spread.max)}"


def _of_capacity(point: Point) -> list[str]:
    if point.interrupted:
        return ["interrupted"]
    if point.asked_rate and point.achieved_rate and point.backlog > max(10, 0.05 * point.issued):
        return [f"above capacity: {point.backlog} requests had no answer when the last one arrived"]
    return []


def ended(point: Point) -> str:
    """Describe in one line how a load ended."""
    rate = f" {rate_text(point.asked_rate)}/s" if point.asked_rate is not None else ""
    parts = [f"{point.answered} of {point.issued} answered"]
    parts += [f"{figures.plain(point.achieved_rate, 4)}/s"] if point.achieved_rate else []
    parts += [f"{_worst(point.latency)} ms"] if point.latency else []
    parts += [f"{100 * one.share:.1f} % within {one.slo_ms:g} ms" for one in point.goodput if rate]
    return f"{point.scenario}{rate}: {', '.join(parts)}"


def few_requests(point: Point | None) -> str:
    """Return a warning for a limit met by too few requests for a 99th percentile; else an empty text."""
    if point is None or point.issued >= ENOUGH:
        return ""
    return f"by all of {point.issued} requests: too few for a 99th percentile, a longer --duration"


def sentence(found: Highest) -> str:
    """Describe a highest rate."""
    if found.rate is None:
        return f"no rate tried has 99 % of requests within {found.slo_ms:g} ms{found.note and f' ({found.note})'}"
    return (
        f"{rate_text(found.rate)} requests/s is the highest rate tried with 99 % of requests within {found.slo_ms:g} ms"
        f"{found.note and f' ({found.note})'}"
    )


def markdown(run: LoadRun) -> str:
    """The tables as Markdown."""
    lines = [f"# {title_of(run)}", "", f"`{run.command}`", ""]
    for table in tables(run):
        lines += [
            f"## {table.title[0].upper()}{table.title[1:]}",
            "",
            _line(table.heading),
            _line("---" if place == 0 else "---:" for place in range(len(table.heading))),
        ]
        lines += [*map(_line, table.rows), ""]
    lines += [f"- {text}" for text in (*map(sentence, run.highest), *notes(run))]
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(one.replace("|", "\\|") for one in cells) + " |"
