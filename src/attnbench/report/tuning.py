"""Terminal output of `tune`: every configuration compared with the pick, and the uncertainty of the pick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from attnbench.presentation.figures import half_interval, margin, measured, plain, unit_for
from attnbench.report.terminal import Terminal, decimal_aligned
from attnbench.stats.race_data import CLOSE, Outcome, Standing

if TYPE_CHECKING:
    from rich.console import Console

GAP = 2
SPARE = ("TFLOP/s", "samples")
"""Columns that are dropped on a narrow page."""

MEANING = {"picked": "picked", "final": "final", "cut": "no room in the final", "reference": "reference"}


def render_tuning(
    console: Console,
    *,
    title: str,
    conditions: str,
    outcome: Outcome,
    flops: int | None,
    short: Callable[[str], str],
    failures: Sequence[tuple[str, str, str]],
    remarks: Mapping[str, str],
    rerun: str,
    references: Sequence[Standing] = (),
) -> None:
    """Print a race.

    Args:
        console: output.
        title: backend and case.
        conditions: card, versions, timer and cache.
        outcome: of the race.
        flops: useful work of the case; None omits the rate.
        short: maps a contestant's name to its text in the table.
        failures: (status, configuration, reason) of those that did not run or were wrong.
        remarks: labelled lines below: where the time went, where the answer is stored.
        rerun: command that measures the pick beside the default.
        references: other backends, sampled alternately with the pick.
    """
    terminal = Terminal(console)
    terminal.title(title, conditions)
    others = {one.name for one in references}
    _standings(terminal, [*outcome.standings, *references], flops, lambda name: name if name in others else short(name))
    if failures:
        terminal.losses(_together(failures))
    terminal.item("pick", f"{outcome.pick}{_over_default(outcome)}", "bold")
    terminal.item("loss", regret(outcome), "dim")
    for label, text in remarks.items():
        terminal.item(label, text, "dim")
    terminal.line("rerun", "dim")
    terminal.unbroken(f"  {rerun}")


def regret(outcome: Outcome) -> str:
    """Describe how far the pick may be from the best."""
    chance = "over 99.9 %" if outcome.close > 0.999 else f"{100 * outcome.close:.3g} %"
    return (
        f"the pick is expected to be {100 * outcome.regret:.2g} % slower than the best of all that were raced, at "
        f"most {100 * outcome.most:.2g} % with a chance of 95 %, and within {100 * CLOSE:g} % of it with a "
        f"chance of {chance}"
    )


def _standings(
    terminal: Terminal, standings: Sequence[Standing], flops: int | None, short: Callable[[str], str]
) -> None:
    unit = unit_for(one.median_ms for one in standings)
    halves = [half_interval(one.ratio, one.ci_low, one.ci_high) for one in standings]
    columns: dict[str, list[str]] = {
        "configuration": [short(one.name) for one in standings],
        "time / pick": decimal_aligned(
            [
                "" if one.ended == "picked" else f"{measured(one.ratio, half)}x"
                for one, half in zip(standings, halves, strict=True)
            ]
        ),
        "95 %": decimal_aligned([margin(one.ratio, half) for one, half in zip(standings, halves, strict=True)]),
        f"median {unit.name}": decimal_aligned([plain(one.median_ms * unit.per_ms, 4) for one in standings]),
        "TFLOP/s": [] if flops is None else decimal_aligned([plain(flops / one.median_ms / 1e9) for one in standings]),
        "samples": [str(one.rounds) for one in standings],
        "": [MEANING.get(one.ended) or f"dropped in stage {one.stage}" for one in standings],
    }
    shown = _fitting({name: texts for name, texts in columns.items() if texts}, terminal.width)
    table = terminal.table()
    for name in shown:
        words = name in ("configuration", "")
        table.add_column(name, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    for index, one in enumerate(standings):
        style = "bold" if one.ended == "picked" else "" if one.ended == "final" else "dim"
        table.add_row(*(terminal.text(texts[index], style) for texts in shown.values()))
    terminal.print(table)


def _fitting(columns: dict[str, list[str]], width: int) -> dict[str, list[str]]:
    """Drop columns that do not fit on a narrow page."""
    left = dict(columns)
    for name in SPARE:
        if sum(max(map(len, [head, *texts])) + GAP for head, texts in left.items()) <= width:
            break
        left.pop(name, None)
    return left


def _together(failures: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Merge equal failures into one line."""
    alike: dict[tuple[str, str], list[str]] = {}
    for status, name, reason in failures:
        alike.setdefault((status, reason), []).append(name)
    return [
        (
            status,
            names[0] if len(names) == 1 else f"{len(names)} configurations",
            reason if len(names) == 1 else f"{reason} ({', '.join(names)})",
        )
        for (status, reason), names in alike.items()
    ]


def _over_default(outcome: Outcome) -> str:
    """Describe the gain of tuning, if the default took part."""
    default = next((one for one in outcome.standings if "[" not in one.name), None)
    if default is None:
        return ""
    if default.name == outcome.pick:
        return ", the default: nothing is faster"
    half = half_interval(default.ratio, default.ci_low, default.ci_high)
    reach = margin(default.ratio, half)
    return f", against which the default takes {measured(default.ratio, half)}x{f' ({reach})' if reach else ''}"
