"""Rooflines: how close each backend comes to the machine's limit at the case's intensity.

There is one for each case, with every backend, and one for the whole run, with the fastest of each case.
A launch that skips work is drawn at its executed work, with a hollow marker: no roof bounds its useful work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from attnbench.presentation.block import backend_name
from attnbench.presentation.figures import plain
from attnbench.record import Record
from attnbench.report.charts.base.data import RunData, Table
from attnbench.report.charts.base.encodings import colour, finished, shape
from attnbench.report.charts.base.figure import Chart, Figure, Spec, filled, row, short
from attnbench.report.charts.base.labels import LINE, NARROW, around, scaled, shortened, spread
from attnbench.report.charts.base.roofs import Roof, intensity, measured, promised, promised_at
from attnbench.report.charts.base.style import PLAIN, Styles

HEIGHT = 320.0
ABOVE = 0.14
"Share of the plot's height reserved above the roofs for their legend."
MEASURED, PROMISED = "measured", "data sheet"
DASH = {MEASURED: [1, 0], PROMISED: [5, 4]}
LINES = {MEASURED: "——", PROMISED: "- - -"}
"Text form of the line styles."


def draw(data: RunData, styles: Styles) -> Iterable[Figure]:
    """Yield figures for records with a rate and a ceiling."""
    for number, (words, tables) in enumerate(_alike(data)):
        best = [table.records[0] for table in tables if table.standing[0] is table.records[0]]
        best = [record for record in best if _is_drawn(record)]
        if len({intensity(record) for record in best}) > 1:
            everybody = [record for table in tables for record in table.records]
            yield from _figure(best, everybody, styles, f"roofline{f'-{number + 1}' if number else ''}",
                               f"Roofline, the fastest of each case{words}")  # fmt: skip
    for table in data.tables:
        yield from _figure([record for record in table.records if _is_drawn(record)], table.records, styles,
                           "roofline", f"Roofline, {table.case_id}", table)  # fmt: skip


def _alike(data: RunData) -> list[tuple[str, list[Table]]]:
    """Group tables that share a roof (machine, conditions and dtype), with the text that distinguishes each group."""
    found: list[tuple[str, list[Table]]] = []
    for tables in data.by_conditions():
        dtypes = dict.fromkeys(str(table.case.get("dtype")) for table in tables)
        for dtype in dtypes:
            found.append((f", {dtype}" if len(dtypes) > 1 else "",
                          [table for table in tables if str(table.case.get("dtype")) == dtype]))  # fmt: skip
    return found


def _is_drawn(record: Record) -> bool:
    return intensity(record) is not None and record.rate is not None and bool(record.rate.tflops)


def _figure(
    drawn: Sequence[Record],
    everybody: Sequence[Record],
    styles: Styles,
    name: str,
    title: str,
    table: Table | None = None,
) -> Iterable[Figure]:
    roofs = {MEASURED: measured(everybody), PROMISED: promised(everybody)}
    marks = {place: roof for record in drawn if (place := intensity(record)) and (roof := promised_at(record))}
    if not drawn or not (any(roof.flat or roof.slope for roof in roofs.values()) or marks):
        return
    points = [_point(record, styles) for record in drawn]
    xs = [one["x"] for one in points] + [roof.ridge for roof in roofs.values() if roof.ridge]
    low, high = min(xs) / 3, max(xs) * 3
    lines = {kind: roof.line(low, high) for kind, roof in roofs.items()}
    ys = [one["m"] for one in points] + [one["e"] for one in points if "e" in one]
    bottom, most = min(ys) / 1.6, 1.1 * max([*ys, *marks.values(), *(y for line in lines.values() for _, y in line)])
    top = most * (most / bottom) ** (ABOVE / (1.0 - ABOVE))
    if table:
        _name_column(points, (low, high), (bottom, top))
    else:
        _name_around(points, (low, high), (bottom, top))
    corners = [{"k": kind, "x": short(x), "m": short(y), "d": DASH[kind]}
               for kind, line in lines.items() for x, y in line]  # fmt: skip
    if not lines[PROMISED]:
        corners += [{"k": f"{place}", "x": short(place * side), "m": short(roof), "d": DASH[PROMISED]}
                    for place, roof in marks.items() for side in (0.8, 1.25)]  # fmt: skip
    room = [{"x": short(x), "m": short(y)} for x in (low, high) for y in (bottom, top)]
    data = {"rows": points, "roofs": corners, "labels": _labels(roofs, marks), "room": room}
    ordered = points if table else sorted(points, key=lambda one: one["m"])[:: max(len(points) - 1, 1)]
    summary = "; ".join(f"{one['b']} {one['t']}" for one in ordered)
    yield Figure(
        name=name, kind="roofline", title=title, case_id=table.case_id if table else None,
        folder=table.folder if table else "",
        alt=f"TFLOP/s over FLOP per byte under {_words(roofs, marks)}. {'' if table else 'From '}{summary}.",
        spec=filled(_definition(any("e" in one or "o" in one for one in points)), data),
    )  # fmt: skip


def _point(record: Record, styles: Styles) -> dict[str, Any]:
    place, rate, style = intensity(record), record.rate, styles.of(backend_name(record))
    assert place is not None and rate is not None and rate.tflops is not None  # noqa: PT018 - `_is_drawn`
    work, share = record.work, f", {plain(rate.percent_of_peak)} % of the data sheet" if rate.percent_of_peak else ""
    point = row(b=backend_name(record), n=shortened(backend_name(record)), i=record.case_id, c=style.colour,
                g=style.shape)  # fmt: skip
    if work is None or not work.executed_flops or not rate.executed_tflops or work.executed_flops == work.flops:
        return point | {"x": short(place), "m": short(rate.tflops), "t": f"{plain(rate.tflops)} TFLOP/s{share}"}
    executed = {"e": short(rate.executed_tflops), "f": short(work.executed_flops / work.bytes)}
    words = f"executed {plain(rate.executed_tflops)} TFLOP/s{share}, useful {plain(rate.tflops)} TFLOP/s"
    if work.least_flops < work.flops:  # its useful work is not bound by the roof: skipped work took no time
        return point | {"x": executed["f"], "m": executed["e"], "t": words, "o": 1}
    return point | executed | {"x": short(place), "m": short(rate.tflops), "t": words}


def _name_column(points: Sequence[dict[str, Any]], across: tuple[float, float], up: tuple[float, float]) -> None:
    """Place names of one case in a column beside the markers, where there is more room, with leader lines."""
    (low, high), (bottom, top) = across, up
    heights = scaled([bottom, top, *(one["m"] for one in points)], HEIGHT, log=True)[2:]
    aside = (high / low) ** 0.035
    for one, at in zip(points, spread(heights, LINE, LINE, HEIGHT - LINE), strict=True):
        left = one["x"] ** 2 > low * high
        one |= {"X": short(one["x"] / aside if left else one["x"] * aside), "dx": -3 if left else 3,
                "y": short(bottom * (top / bottom) ** (at / HEIGHT)), "a": "right" if left else "left"}  # fmt: skip


def _name_around(points: Sequence[dict[str, Any]], across: tuple[float, float], up: tuple[float, float]) -> None:
    """Place names of many cases: each backend once, at its lowest marker, far from the roofs and their legend."""
    named = list({one["b"]: one for one in sorted(points, key=lambda one: -one["m"])}.values())
    rest = [one for one in points if not any(one is other for other in named)]
    for one in rest:
        del one["n"]
    x = scaled([*across, *(one["x"] for one in (*named, *rest))], NARROW, log=True)[2:]
    heights = scaled([*up, *(one["m"] for one in (*named, *rest))], HEIGHT, log=True)[2:]
    spots = [(at, HEIGHT - height) for at, height in zip(x, heights, strict=True)]
    own = spots[: len(named)]
    places = around([at for at, _ in own], [at for _, at in own], [one["n"] for one in named], HEIGHT,
                    spots[len(named):])  # fmt: skip
    for one, place in zip(named, places, strict=True):
        one |= {"X": one["x"], "y": short(one["m"] * (up[1] / up[0]) ** (-place.dy / HEIGHT)), "dx": place.dx,
                "a": place.align}  # fmt: skip


def _labels(roofs: dict[str, Roof], marks: dict[float, float]) -> list[dict[str, Any]]:
    """Return the legend of the roofs, line by line in the room above them, where it meets no markers or names."""
    texts = [f"{LINES[kind]} {_bounds(kind, roof)}" for kind, roof in roofs.items() if roof.flat or roof.slope]
    if not roofs[PROMISED].flat and not roofs[PROMISED].slope and marks:
        texts.append(f"{LINES[PROMISED]} {PROMISED}: {plain(max(marks.items())[1])} TFLOP/s here")
    return [{"n": text, "y": (place + 0.5) * LINE} for place, text in enumerate(texts)]


def _bounds(kind: str, roof: Roof) -> str:
    flat, slope = (" matmul", " copy") if kind == MEASURED else ("", "")
    parts = ([f"{plain(roof.flat)} TFLOP/s{flat}"] if roof.flat else []) + (
        [f"{plain(roof.slope)} TB/s{slope}"] if roof.slope else []
    )
    return f"{kind}: {', '.join(parts)}"


def _words(roofs: dict[str, Roof], marks: dict[float, float]) -> str:
    parts = [_bounds(kind, roof) for kind, roof in roofs.items() if roof.flat or roof.slope]
    return "; ".join(parts) or f"{PROMISED}: {plain(max(marks.values()))} TFLOP/s"


@cache
def _definition(with_executed: bool) -> Spec:
    import altair as alt

    x_scale = alt.Scale(type="log", nice=False)
    y_scale = alt.Scale(type="log", nice=False)
    title = "TFLOP/s (filled: useful work; hollow: executed)" if with_executed else "useful work, TFLOP/s"
    x = alt.X("x:Q").scale(x_scale).axis(alt.Axis(tickCount=6)).title("arithmetic intensity, FLOP/byte")
    y = alt.Y("m:Q").scale(y_scale).axis(alt.Axis(tickCount=6)).title(title)
    points, roofs, labels, room = (alt.Chart(alt.NamedData(name=name)) for name in ("rows", "roofs", "labels", "room"))
    tooltip = [alt.Tooltip("b:N", title="backend"), alt.Tooltip("i:N", title="case"), alt.Tooltip("t:N", title="rate"),
               alt.Tooltip("x:Q", title="FLOP/byte")]  # fmt: skip
    dash = alt.StrokeDash("d:N").scale(None).legend(None)
    words = labels.mark_text(style="note", align="right", baseline="middle", dy=alt.expr("datum.y")).encode(
        x=alt.value("width"), y=alt.value(0), text="n:N")  # fmt: skip
    layers = [
        room.mark_point(opacity=0).encode(x=x, y=y),
        roofs.mark_line(color=PLAIN, strokeWidth=1.5).encode(x=x, y=y, detail="k:N", strokeDash=dash),
        words,
        points.transform_filter("isValid(datum.y)").mark_rule(strokeWidth=1, opacity=0.6).encode(
            x=x, y=y, x2="X:Q", y2="y:Q", color=colour()),
        points.transform_filter("!isValid(datum.o)").mark_point(filled=True, size=64, opacity=1).encode(
            x=x, y=y, color=colour(), shape=shape(), tooltip=tooltip),
        points.transform_filter("isValid(datum.y)").mark_text(
            style="label", baseline="middle", dx=alt.expr("datum.dx"), align=alt.expr("datum.a")
        ).encode(x=alt.X("X:Q").scale(x_scale), y=alt.Y("y:Q").scale(y_scale).title(title), text="n:N"),
    ]  # fmt: skip
    if with_executed:
        layers.insert(
            5,
            points.transform_filter("isValid(datum.o)")
            .mark_point(filled=False, size=64, strokeWidth=1.5)
            .encode(x=x, y=y, color=colour(), shape=shape(), tooltip=tooltip),
        )
        both = points.transform_filter("isValid(datum.e)")
        layers[3:3] = [
            both.mark_rule(opacity=0.6).encode(x=x, y=y, x2="f:Q", y2="e:Q", color=colour()),
            both.mark_point(filled=False, size=64, strokeWidth=1.5).encode(
                x=alt.X("f:Q").scale(x_scale), y=alt.Y("e:Q").scale(y_scale), color=colour(), shape=shape()),
        ]  # fmt: skip
    return finished(alt.layer(*layers)) | {"height": HEIGHT}


CHART = Chart(rank=20, draw=draw)
