"""seed-003: plots of sparse and quantised attention over length, and over the achieved sparsity.

    seq_len_plots/{time_ms,tflops}_causal_{false,true}.png                  cases that keep every block
    seq_len_plots_30/…                                                      at 30 % sparsity; likewise others
    sparge_sparsity_plots/{time_ms,tflops}_actual_sparsity_seq32768_causal_{false,true}.png

A given map is in the folder of the sparsity that its case requests, a predicted one in that of the sparsity it reached,
to the nearest ten percent.  Dense rows are lines in all plots over length.

Time is the mean.  TFLOP/s count 4 B H D S² FLOPs, halved under a causal mask, including skipped ones: the effective
rate.  Backends have the seed's names fa2, sage2, sparge, sparge_fp8; others keep their own.  A PNG carries its numbers
in a text chunk, which `read` reads.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from attnbench.errors import RunFileError, Unavailable, UsageError, refusal
from attnbench.formats.layouts.base import Layout, imported_record, imported_run, imported_time, mean_of, timed
from attnbench.record import Record, Run
from attnbench.store.environments import input_of
from attnbench.store.files import is_file, is_folder, write_bytes

NAME, WORKLOADS = "seed-003", ("sparse", "attention")
LENGTHS, SWEEP = "seq_len_plots", "sparge_sparsity_plots"
FILE = re.compile(r"(time_ms|tflops)(?:_actual_sparsity_seq(\d+))?_causal_(false|true)\.png")
FOLDER = re.compile(rf"{LENGTHS}(?:_(\d+))?|{SWEEP}")
PINNED, PACKAGE = "sdpa-flash", "flash-attn-2"
"FlashAttention 2 in torch, the seed's FA2, and the package."
SERIES = {PINNED: "fa2", PACKAGE: "fa2", "sage2": "sage2", "sparge": "sparge", "sparge-fp8": "sparge_fp8"}
OTHERS = {"nheads_kv": "nheads", "headdim_v": "headdim", "window": "", "lengths": "", "grid": ""}
"Axes that the seed does not have, and those that they usually equal."
METRICS = {"time_ms": "time, ms", "tflops": "effective TFLOP/s"}
SIGNATURE = b"\x89PNG\r\n\x1a\n"
KEYWORD = b"attnbench seed-003"
VERSION = "6.4"
LARGEST_CHUNK = 2**24
DEFAULTS = "SpargeAttn's defaults (sim 0.6, cdf 0.98) skip nothing on random data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One record as the plots show it."""

    series: str
    batch: int
    nheads: int
    headdim: int
    seqlen: int
    causal: bool
    dtype: str
    sparsity: int
    "percent; selects the folder"
    actual_sparsity: float
    "percent reached"
    mean_ms: float
    map: str
    "origin of the map"
    pattern: str = ""
    "of the case; empty if it has none"
    block: str = ""
    map_seed: int = 0
    input: str = ""
    "values of q, k and v; empty if they are normal, as the seed's, or unknown"
    other: str = ""
    "axes of `OTHERS` that are not as in the seed: nheads_kv 8, window 128:0"

    @property
    def time_ms(self) -> float:
        """Mean time."""
        return self.mean_ms

    @property
    def tflops(self) -> float:
        """TFLOP/s as the seed counts them."""
        flops = 4 * self.batch * self.nheads * self.headdim * self.seqlen**2 / (2 if self.causal else 1)
        return flops / self.mean_ms / 1e9


class Seed003(Layout):
    """Plots of both sweeps."""

    name = NAME
    workloads = WORKLOADS
    pictures = True
    title = "a folder: seq_len_plots/, seq_len_plots_30/, sparge_sparsity_plots/ with PNG of time and TFLOP/s"

    def write(self, run: Run, path: str | Path) -> list[Path]:
        """Write the plots for which the run has two points of a line, or one if it has no more."""
        written = []
        for place, (x, points) in _pictures(_points(run)).items():
            for metric in METRICS:
                file = Path(path) / place.format(metric=metric)
                write_bytes(file, _with_numbers(_drawn(x, metric, points), points))
                written.append(file)
        return written

    def recognises(self, path: Path) -> bool:
        """Recognise a plot by its name, or a folder with plots in it or in the layout's folders."""
        if is_file(path):
            return bool(FILE.fullmatch(path.name))
        return is_folder(path) and bool(_files(path))

    def read(self, path: str | Path) -> Run:
        """Return one record per distinct point of the plots."""
        files = [Path(path)] if is_file(path) else _files(Path(path))
        points = list(dict.fromkeys(point for file in files for point in _numbers(file)))
        if not points:
            raise RunFileError(refusal("import", "path", path, f"has nothing of {NAME}", f"{LENGTHS}/, {SWEEP}/"))
        return imported_run(NAME, path, [_record(point) for point in points])

    def console(self, run: Run) -> str:
        """Return one line for each point of the plots."""
        return "\n".join(
            f"{one.series}{one.other and ', ' + one.other}: seq_len {one.seqlen}, causal {str(one.causal).lower()}, "
            f"sparsity {one.actual_sparsity:g} %: {one.time_ms:.6g} ms, {one.tflops:.4g} TFLOP/s"
            for one in _points(run)
        )

    def notes(self, run: Run) -> tuple[str, ...]:
        """Return the origin of the maps and the meaning of the rates."""
        points = _points(run)
        ways = sorted({point.map for point in points if point.map})
        return (
            f"{NAME}: TFLOP/s are effective: dense FLOPs over the mean time, whatever was skipped",
            *(f"{NAME}: {way}" for way in ways),
            f"{NAME}: {DEFAULTS}",
        )


# ── from a run to points ───────────────────────────────────────────────────────────────────────────


def _points(run: Run) -> list[Point]:
    """Return the timed records of square attention problems.

    Raises:
        UsageError: there is no such record.
    """
    records = [one for one in timed(run.records) if one.workload in WORKLOADS and _fits(one.case)]
    names = SERIES
    if {PINNED, PACKAGE} <= {_named(record)[0] for record in records}:  # one point of both would be their mean
        names = {own: name for own, name in SERIES.items() if own != PACKAGE}
    points = [_point(run, record, names) for record in records]
    if not points:
        accepted = f"a run of the workload {' or '.join(WORKLOADS)} with as many keys as queries"
        raise UsageError(refusal(NAME, "records", 0, "have a time, a length and a head size", accepted))
    return points


def _fits(case: Mapping[str, Any]) -> bool:
    sizes = all(type(case.get(name)) is int for name in ("batch", "nheads", "headdim", "seqlen"))
    return sizes and case.get("seqlen_k") == case["seqlen"] and case.get("mode", "fwd") == "fwd"


def _named(record: Record) -> tuple[str, str]:
    """Return the name of a row's backend, of a dense row the dense backend's, and its configuration, followed by ]."""
    name, _, short = record.backend.partition("[")
    return (short.removesuffix("]") or PINNED, "") if name == "dense" else (name, short)


def _point(run: Run, record: Record, names: Mapping[str, str]) -> Point:
    case, work = record.case, record.work
    name, short = _named(record)
    density = record.counters.get("density")
    if density is None:
        density = work.flops / work.dense_flops if work and work.dense_flops else 1.0
    asked = case.get("density", 1.0)
    asked = density if asked is None else asked  # the map comes from a file
    way = _way(record, short)
    series = names.get(name, name + (f"[{short}" if short else ""))
    return Point(
        series=series,
        batch=case["batch"],
        nheads=case["nheads"],
        headdim=case["headdim"],
        seqlen=case["seqlen"],
        causal=bool(case.get("causal")),
        dtype=str(case.get("dtype", "")),
        sparsity=10 * round(10 * (1 - density)) if way.startswith("map predicted") else round(100 * (1 - asked)),
        actual_sparsity=round(100 * (1 - density), 3),
        mean_ms=mean_of(record),
        map=way,
        pattern=str(case.get("pattern") or ""),
        block=str(case.get("block") or ""),
        map_seed=int(case.get("map_seed") or 0),
        input=inputs if (inputs := input_of(run, record) or "normal") != "normal" else "",
        other=_others(case),
    )


def _others(case: Mapping[str, Any]) -> str:
    """Return the axes of a case that the seed's cases do not have, in words."""
    values = {
        name: case.get(name) for name, like in OTHERS.items() if case.get(name) not in (None, "full", case.get(like))
    }
    return ", ".join(
        f"{name} {':'.join(map(str, value)) if isinstance(value, list | tuple) else value}"
        for name, value in values.items()
    )


def _way(record: Record, short: str) -> str:
    """Return the origin of a row's map; empty for dense rows."""
    said = [note for note in record.notes if note.startswith("map ")]
    if said or record.workload != "sparse" or record.backend.startswith("dense"):
        return said[0] if said else ""
    case = record.case
    return f"map given: pattern {case.get('pattern')}, blocks {case.get('block')}, seed {case.get('map_seed')}"


def _pictures(points: Sequence[Point]) -> dict[str, tuple[str, list[Point]]]:
    """Return file names, with {metric} open, and for each the field of its x axis and its points."""
    found: dict[str, tuple[str, list[Point]]] = {}
    for point in points:
        folder = LENGTHS + (f"_{point.sparsity}" if point.sparsity else "")
        name = f"{folder}/{{metric}}_causal_{str(point.causal).lower()}.png"
        found.setdefault(name, ("seqlen", []))[1].append(point)
    for _, there in found.values():
        lines = {_place(point) for point in there if not point.map}
        there += [
            point
            for point in points
            if not point.map and point.causal == there[0].causal and _place(point) not in lines
        ]
    sweeps: dict[tuple[int, bool], list[Point]] = {}
    for point in points:
        if point.map:
            sweeps.setdefault((point.seqlen, point.causal), []).append(point)
    for (seqlen, causal), some in sweeps.items():
        if len({point.actual_sparsity for point in some}) > 1:
            name = f"{SWEEP}/{{metric}}_actual_sparsity_seq{seqlen}_causal_{str(causal).lower()}.png"
            found[name] = ("actual_sparsity", some)
    return found


def _place(point: Point) -> tuple[str, int, int, int, int, str, str]:
    return point.series, point.batch, point.nheads, point.headdim, point.seqlen, point.dtype, point.other


# ── pictures ───────────────────────────────────────────────────────────────────────────────────────


def _drawn(x: str, metric: str, points: Sequence[Point]) -> bytes:
    """Return a PNG of one metric over x, one line per series.

    Raises:
        Unavailable: the drawing library is not installed.
    """
    try:
        import vl_convert
    except ImportError:
        raise Unavailable(f"{NAME}: module=vl_convert is not installed; pip install vl-convert-python") from None
    ways = sorted({point.map for point in points if point.map})
    inputs = sorted({f"input {point.input}" for point in points if point.input})
    others = sorted({point.other for point in points if point.other})
    first = points[0]
    shape = ", ".join(
        f"{name} {', '.join(map(str, sorted({getattr(point, name) for point in points})))}"
        for name in ("batch", "nheads", "headdim", "dtype")
    )
    rows = [
        {"x": getattr(point, x), "y": round(getattr(point, metric), 6), "series": label}
        for point, label in zip(points, _lines(x, points), strict=True)
    ]
    scale = {"type": "log", "base": 2} if x == "seqlen" else {"zero": False}
    title = {"seqlen": "sequence length", "actual_sparsity": "actual sparsity, %"}[x]
    axis = {"values": sorted({point.seqlen for point in points}), "format": "d"} if x == "seqlen" else {}
    drawn: bytes = vl_convert.vegalite_to_png(
        json.dumps(
            {
                "width": 560,
                "height": 360,
                "data": {"values": rows},
                "mark": {"type": "line", "point": True},
                "title": {
                    "text": f"{METRICS[metric]}, causal {str(first.causal).lower()}: {shape}",
                    "subtitle": [*ways, *inputs, *others, DEFAULTS],
                },
                "encoding": {
                    "x": {"field": "x", "type": "quantitative", "title": title, "scale": scale, "axis": axis},
                    "y": {
                        "field": "y",
                        "aggregate": "mean",
                        "type": "quantitative",
                        "title": METRICS[metric],
                        "scale": {"type": "log"} if metric == "time_ms" else {},
                    },
                    "color": {"field": "series", "title": None, "legend": {"labelLimit": 0}},
                },
            }
        ),
        vl_version=VERSION,
    )
    return drawn


def _lines(x: str, points: Sequence[Point]) -> list[str]:
    """Return the line of each point: its series, and what distinguishes points of one series at the same x.

    Over sparsity, a line connects the maps that a backend predicted with several thresholds.
    """

    def value(point: Point, name: str) -> str:
        given = x == "seqlen" or point.map.startswith("map given")
        return str(getattr(point, name)) if name != "map" or given else ""

    shown = []
    for name in ("batch", "nheads", "headdim", "dtype", "other", "input", "map"):
        there: dict[tuple[str, float], set[str]] = {}
        for point in points:
            there.setdefault((point.series, point.seqlen), set()).add(value(point, name))
        if any(len(values) > 1 for values in there.values()):
            shown.append(name)
    return [
        ", ".join(
            [
                point.series,
                *(
                    f"{name} {text}" if name not in ("map", "other") else text
                    for name in shown
                    if (text := value(point, name))
                ),
            ]
        )
        for point in points
    ]


def _with_numbers(picture: bytes, points: Iterable[Point]) -> bytes:
    """Return the PNG with the points in a text chunk before its end."""
    data = KEYWORD + b"\0" + json.dumps([asdict(point) for point in points]).encode("ascii")
    chunk = struct.pack(">I", len(data)) + b"tEXt" + data + struct.pack(">I", zlib.crc32(b"tEXt" + data))
    end = picture.rindex(struct.pack(">I", 0) + b"IEND")
    return picture[:end] + chunk + picture[end:]


def _numbers(path: Path) -> list[Point]:
    """Return the points in a PNG.

    Raises:
        RunFileError: it cannot be read, is not a PNG, or has no usable points.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunFileError(refusal("import", "path", path, f"cannot be read ({error.strerror})", "a PNG")) from None
    for kind, content in _chunks(path, data):
        keyword, _, text = content.partition(b"\0")
        if kind == b"tEXt" and keyword == KEYWORD:
            try:
                return [_checked(item) for item in json.loads(text)]
            except (ValueError, TypeError, RecursionError):
                raise RunFileError(
                    refusal(
                        "import",
                        "path",
                        path,
                        "carries numbers that cannot be used",
                        "a picture of this layout as it was written",
                    )
                ) from None
    raise RunFileError(
        refusal(
            "import",
            "path",
            path,
            "carries no numbers",
            "a picture that `attnbench export --layout seed-003` wrote",
            "of the seed's own pictures there is nothing to read",
        )
    )


def _chunks(path: Path, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not data.startswith(SIGNATURE):
        raise RunFileError(refusal("import", "path", path, "is no PNG", "a PNG"))
    at = len(SIGNATURE)
    while at + 12 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if length > LARGEST_CHUNK or at + 12 + length > len(data):
            raise RunFileError(refusal("import", "path", path, "is torn", "a whole PNG"))
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += 12 + length


def _checked(item: Any) -> Point:
    point = Point(**item)
    for name, kind in Point.__annotations__.items():
        value = getattr(point, name)
        wanted = {"int": int, "float": (int, float), "str": str, "bool": bool}[kind]
        if not isinstance(value, wanted) or (isinstance(value, bool) and kind != "bool"):  # type: ignore[arg-type]  # a type or a pair
            raise ValueError(name)
    if not (0 < point.mean_ms < 1e12 and 0 <= point.sparsity <= 100 and point.seqlen > 0):
        raise ValueError("out of range")
    return replace(point, mean_ms=float(point.mean_ms), actual_sparsity=float(point.actual_sparsity))


def _files(folder: Path) -> list[Path]:
    """Return the plots in a folder and in the layout's own folders below it."""
    places = [folder]
    try:
        places += sorted(one for one in folder.iterdir() if FOLDER.fullmatch(one.name) and is_folder(one))
        return [file for place in places for file in sorted(place.iterdir()) if FILE.fullmatch(file.name)]
    except OSError:
        return []


def _record(point: Point) -> Record:
    names = {theirs: ours for ours, theirs in reversed(SERIES.items())}
    inner = names.get(point.series, point.series)
    case = {
        "batch": point.batch,
        "nheads": point.nheads,
        "headdim": point.headdim,
        "seqlen": point.seqlen,
        "seqlen_k": point.seqlen,
        "causal": point.causal,
        "dtype": point.dtype,
        # The density of a map from a file is fixed.
        "density": None if "@" in point.pattern else round(1 - point.sparsity / 100, 2),
    }
    others = dict(pair.split(" ", 1) for pair in point.other.split(", ") if " " in pair)
    case |= {name: int(text) if text.isdecimal() else text for name, text in others.items() if name in OTHERS}
    if point.pattern:
        case |= {"block": point.block, "pattern": point.pattern, "map_seed": point.map_seed}
    backend = inner if point.map else f"dense[{inner}]"
    if inner in ("sparge", "sparge-fp8"):  # several thresholds of one case are distinguished by their sparsity
        backend = f"{inner}[{point.actual_sparsity:g}%]"
    record = imported_record(
        NAME,
        case,
        backend,
        imported_time(mean_ms=point.mean_ms),
        workload="sparse",
        counters={"density": 1 - point.actual_sparsity / 100},
    )
    notes = (*record.notes, *([point.map] if point.map else []))
    return replace(record, notes=notes, input=point.input or None)


LAYOUT = Seed003()
