"""The tables of the README and the docs that hold measured numbers, made from the files in `results/`.

A table stands between ``<!-- begin: NAME -->`` and ``<!-- end -->``; NAME is a key of `TABLES`.  A table whose
file is not there says so.

    python benchmarks/tables.py --write     after a new measurement
    python benchmarks/tables.py --check     exit 1 where a table is not what its file says
"""

from __future__ import annotations

import argparse
import difflib
import functools
import io
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.record import Run

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- begin: (?P<name>[\w-]+) -->\n)(?P<text>.*?)(<!-- end -->)", re.DOTALL)
SHOWN_ON_CPU = ("b1-s128-h4-d64-fp32-fwd", "b1-s512-h4-d64-fp32-fwd")
"""What the README shows of the run on a CPU."""
SHORT_MS, LONG_MS = 0.03, 0.5
TICK_MS = 3.2e-5
"""Tick of an H200's global timer, which stamps kernels."""

CHINESE = {
    "kernel": "算子",
    "shape": "形状",
    "TFLOP/s": "TFLOP/s",
    "fastest other": "最快的其他实现",
    "ours over it": "我们的是它的几倍",
    "Not measured yet.": "尚未测量。",
    "backend": "后端",
    "what": "说明",
    "install": "安装",
    "tested on": "已在何处测试",
    "untested": "未测试",
    "kernel (batch, heads, length, head dim)": "算子（批大小，头数，长度，头维度）",
    "its attention kernel": "其中的注意力算子",
    "do_bench": "do_bench",
    "spread": "离散度",
    "attnbench": "attnbench",
    "A/A, worst": "A/A，最差",
    "SM clock": "SM 频率",
    "sampling": "采样用时",
    "pair": "对照",
    "true": "真值",
    "found": "测得",
    "right sign": "方向正确",
    "interval leaves out 1": "区间不含 1",
    "power": "功耗",
    "A/A ratio, at the power limit": "功率上限下：A/A 之比",
    "wanted": "目标",
    "reached": "实际",
    "met": "达到",
    "yes": "是",
    "no": "否",
    "worst": "最差",
    "of": "/",
    "batch": "批大小",
    "length": "长度",
    "head dim": "头维度",
    "causal": "因果",
    "Useful TFLOP/s, median; the fastest in bold.": "有效 TFLOP/s，取中位数；最快者加粗。",
    "Not in the table: ": "未列入表中：",
    "Measured on ": "测量环境：",
    ", ": "，",
    ".": "。",
    "cases × backends": "算例 × 后端",
    "wall time": "总用时",
    "share of it spent sampling": "其中采样所占比例",
    "a case": "每个算例",
    "a case without its sampling": "每个算例（不含采样）",
    "first case without its sampling": "首个算例（不含采样）",
    "cases too short for the target": "采样过短、无法达标的算例数",
    "stage": "阶段",
    "median": "中位数",
    "share": "占比",
    "half interval, median": "半区间，中位数",
    "spread of the median, under 30 µs": "30 µs 以下：中位数的离散度",
    "CUPTI beyond a kernel's own stamps, less an empty kernel's": "CUPTI 与算子自记时间戳之差（扣除空算子）",
    "kernel that stamps itself": "自记时间戳的算子",
    "first to last stamp": "首末时间戳之差",
    "CTAs": "CTA 数",
    "A/A ratio, over 0.5 ms": "0.5 ms 以上：A/A 之比",
    "A/A ratio, under 30 µs": "30 µs 以下：A/A 之比",
    "1 % found with the right sign": "1 % 的差别，方向判断正确",
    "device time a backend, against do_bench's": "每个后端的设备时间，与 do_bench 相比",
    "wall time spent sampling": "总用时中的采样比例",
    "at most 2 % or a tick": "不超过 2 % 或一个计时刻度",
    "within 3 % or 0.3 µs": "3 % 或 0.3 µs 以内",
    "1 ± 0.1 %": "1 ± 0.1 %",
    "1 ± 0.2 % or a tick": "1 ± 0.2 % 或一个计时刻度",
    "all": "全部",
    "no more": "不超过",
    "at least 60 %": "至少 60 %",
    "not measured": "未测量",
}

Say = Callable[[str], str]
Row = Sequence[str]


@dataclass(frozen=True)
class Table:
    """One generated table: the files it is made of, and how."""

    files: tuple[str, ...]
    render: Callable[..., str]


# ── what is measured ───────────────────────────────────────────────────────────────────────────────


def backends(say: Say) -> str:
    """Every shipped backend, from the registry."""
    from attnbench.backends.registry import all_backends

    rows = [
        (
            f"`{name}`",
            backend.title,
            f"`{backend.install.replace('{max_jobs}', 'N')}`",
            backend.tested or say("untested"),
        )
        for name, backend in sorted(all_backends().items())
        if type(backend).__module__.startswith("attnbench.")
    ]
    return markdown([say(word) for word in ("backend", "what", "install", "tested on")], rows)


def on_cpu(say: Say, path: Path) -> str:
    """Two cases of a run as the terminal shows them, and its end."""
    import kernel_tables
    from rich.console import Console

    from attnbench.report.table import render_run

    text = io.StringIO()
    render_run(kernel_tables.load(path), Console(file=text, width=100))
    heading, *blocks, end = text.getvalue().rstrip().split("\n\n")
    shown = [heading, *(block for block in blocks if block.split()[0] in SHOWN_ON_CPU)]
    lines = "\n\n".join([*shown, "…", end]).splitlines()
    return "\n".join(["```text", *(line.rstrip() for line in lines), "```"])


def on_card(say: Say, path: Path) -> str:
    """Useful TFLOP/s of every case and backend of a run."""
    import kernel_tables

    from attnbench.record import Status, to_dict

    run = kernel_tables.load(path)
    rates = {(r.case_id, r.backend): r.rate.tflops for r in run.records if r.rate and r.rate.tflops}
    names = sorted({name for _, name in rates})
    rows = []
    for case_id, case in {r.case_id: r.case for r in run.records}.items():
        best = max(rates.get((case_id, name), 0.0) for name in names)
        cells = [
            (f"**{rate:.0f}**" if rate == best else f"{rate:.0f}") if (rate := rates.get((case_id, name))) else ""
            for name in names
        ]
        shape = (case["batch"], case["seqlen"], case["headdim"], say("yes") if case["causal"] else say("no"))
        rows.append([*map(str, shape), *cells])
    head = [say(word) for word in ("batch", "length", "head dim", "causal")]
    lines = [
        markdown([*head, *(f"`{name}`" for name in names)], rows),
        "",
        say("Useful TFLOP/s, median; the fastest in bold."),
        where(to_dict(run.environments[0]), say),
    ]
    lost = dict.fromkeys(f"`{r.backend}` ({r.status.value})" for r in run.records if r.status is not Status.PASSED)
    return "\n".join([*lines, *([f"{say('Not in the table: ')}{say(', ').join(lost)}{say('.')}"] if lost else [])])


def precision(say: Say, path: Path) -> str:
    """The harness beside do_bench, kernel by kernel."""
    data = json.loads(path.read_text("utf-8"))
    words = (
        "kernel (batch, heads, length, head dim)",
        "do_bench",
        "spread",
        "attnbench",
        "spread",
        "its attention kernel",
        "A/A, worst",
        "SM clock",
        "sampling",
    )
    rows = []
    for item in data["aa"]:
        ours, theirs = ([row[key] for row in item["rows"]] for key in ("median_ms", "do_bench_ms"))
        rows.append(
            (
                label(item["kernel"]),
                time(statistics.median(theirs)),
                percent(spread(theirs)),
                time(statistics.median(ours)),
                percent(spread(ours)),
                time(kernel_alone(item["rows"])),
                f"{worst(item['rows']):.5f}",
                clocks(item["rows"]),
                f"{statistics.median(row['sampling_s'] for row in item['rows']):.2g} s",
            )
        )
    return "\n".join([markdown([say(word) for word in words], rows), "", where(data["environment"], say)])


def stamps(say: Say, path: Path) -> str:
    """What tools read beyond the first and last moment that a kernel stamps itself."""
    data = json.loads(path.read_text("utf-8"))
    tools = list(next(iter(data["kernels"].values())))
    rows = []
    for name, found in data["kernels"].items():
        kind, size, _, ctas = name.split()
        truth = statistics.median(found["cupti"]["truth_ms"])
        rows.append((f"{kind} {size}", ctas, time(truth), *(f"{1e3 * beyond(found[tool]):+.2f} µs" for tool in tools)))
    words = [say(word) for word in ("kernel that stamps itself", "CTAs", "first to last stamp")]
    return "\n".join([markdown([*words, *(f"`{tool}`" for tool in tools)], rows), "", where(data["environment"], say)])


def beyond(found: dict[str, list[float]]) -> float:
    """Median of what a tool read beyond the stamps, launch by launch, ms."""
    return statistics.median(ms - truth for ms, truth in zip(found["ms"], found["truth_ms"], strict=True))


def power_limit(say: Say, path: Path) -> str:
    """The same kernel twice, sustained."""
    rows = []
    for item in json.loads(path.read_text("utf-8")).get("sustained", ()):
        ours = [row["median_ms"] for row in item["rows"]]
        watts = [row["watts"] for row in item["rows"] if row["watts"]]
        rows.append(
            (
                label(item["kernel"]),
                time(statistics.median(ours)),
                percent(spread(ours)),
                f"{worst(item['rows']):.5f}",
                clocks(item["rows"]),
                f"{max(watts):.0f} W" if watts else "",
            )
        )
    words = ("kernel (batch, heads, length, head dim)", "attnbench", "spread", "A/A, worst", "SM clock", "power")
    return markdown([say(word) for word in words], rows)


def known_answers(say: Say, path: Path) -> str:
    """Pairs whose ratio is known."""
    data = json.loads(path.read_text("utf-8"))
    rows = []
    for item in data["ab"]:
        ratios = [row["ratio"] for row in item["rows"]]
        right = sum((ratio < 1) == (item["true"] < 1) for ratio in ratios)
        sure = sum(_sign(row, item["true"]).met for row in item["rows"])
        rows.append(
            (
                item["pair"],
                f"{item['true']:.5f}",
                f"{min(ratios):.5f}-{max(ratios):.5f}",
                f"{right} {say('of')} {len(ratios)}",
                f"{sure} {say('of')} {len(ratios)}",
            )
        )
    return markdown([say(word) for word in ("pair", "true", "found", "right sign", "interval leaves out 1")], rows)


def overhead(say: Say, path: Path) -> str:
    """How much of a long run's wall time is sampling, and where the rest goes."""
    data = json.loads(path.read_text("utf-8"))
    halves = data["relative_half_width"]
    steps = [(wall - wall_before, sampling - sampling_before)
             for (wall_before, sampling_before), (wall, sampling) in pairwise([(0.0, 0.0), *data["marks"]])]  # fmt: skip
    first, *others = (wall - sampling for wall, sampling in steps)
    usual = statistics.median(others)
    short = sum(sampling < 1.5 * usual for _, sampling in steps)
    words = ("cases × backends", "wall time", "share of it spent sampling", "a case", "a case without its sampling",
             "first case without its sampling", "cases too short for the target", "half interval, median")  # fmt: skip
    rows = [
        (
            f"{data['groups']} × {data['records'] // data['groups']}",
            f"{data['wall_s']:.0f} s",
            percent(data["share"]),
            f"{data['seconds_per_group']:.2g} s",
            f"{min(others):.2f}-{max(others):.2f} s, {say('median')} {usual:.2f} s",
            f"{first:.1f} s",
            f"{short}",
            percent(halves[len(halves) // 2]),
        )
    ]
    tables = [markdown([say(word) for word in words], rows)]
    if "stages_s" in data:
        stages = [(f"`{name}`", f"{seconds:.1f} s", percent(seconds / data["wall_s"]))
                  for name, seconds in data["stages_s"].items() if seconds >= 0.01 * data["wall_s"]]  # fmt: skip
        tables.append(markdown([say(word) for word in ("stage", "wall time", "share")], stages))
    return "\n\n".join(tables)


def compared(say: Say, path: Path, key: str = "grids") -> str:
    """What a diff said of simulated runs whose truth is known."""
    rows = []
    grids = json.loads(path.read_text("utf-8"))[key]
    for equal, changed in zip(grids[::2], grids[1::2], strict=True):
        name, caught, others = equal["setting"]["name"], changed["changed"], changed["unchanged"]
        judged, doubts = sum(caught.values()), caught.get("unclear", 0) + others.get("unclear", 0)
        cause, count = max(changed["causes"].items(), key=lambda one: one[1])
        rows.append(
            (
                name,
                say("yes") if equal["setting"]["yardsticks"] else "",
                f"{equal['grids_with_alarm']} {say('of')} {equal['grids']}",
                f"{100 * caught.get('slower', 0) / judged:.1f} %" if judged else "",
                f"{100 * doubts / (judged + sum(others.values())):.1f} %",
                f"{say(cause)}: {count} {say('of')} {changed['grids']}" if cause != "none" else "",
                percent(equal["smallest"]),
            )
        )
    return markdown(
        [
            say(word)
            for word in (
                "simulated",
                "yardsticks",
                "equal code: diffs with an alarm",
                "3 % slower: called",
                "then unclear",
                "and all rows said to be by",
                "seen from, median row",
            )
        ],
        rows,
    )


def compared_card(say: Say, path: Path) -> str:
    """What a diff said of equal code, measured again and again on a card."""
    data = json.loads(path.read_text("utf-8"))
    rows = []
    for name, diffs in data["grids"].items():
        judged = sum(sum(one["verdicts"].values()) for one in diffs)
        doubts = sum(one["verdicts"].get("unclear", 0) for one in diffs)
        clock = max(one["largest_clock_change"] or 0.0 for one in diffs)
        rows.append(
            (
                name,
                f"{sum(bool(one['alarms']) for one in diffs)} {say('of')} {len(diffs)}",
                f"{doubts} {say('of')} {judged}",
                percent(max(one["largest_change"] for one in diffs)),
                percent(max(one["largest_time_change"] for one in diffs)),
                percent(clock),
                percent(statistics.median(seen for one in diffs for seen in one["smallest_seen"])),
            )
        )
    words = (
        "equal code, measured",
        "diffs with an alarm",
        "rows unclear",
        "largest change",
        "largest of the times",
        "largest of the clocks",
        "seen from, median row",
    )
    return "\n".join([markdown([say(word) for word in words], rows), "", where(data["environment"], say)])


def compared_speed(say: Say, path: Path) -> str:
    """How long a diff of two large runs took."""
    data = json.loads(path.read_text("utf-8"))["speed"]
    words = ("records × samples, each side", "file", "wall time", "CPU time", "load by other work, on cores")
    return markdown(
        [say(word) for word in words],
        [
            (
                f"{data['records']:,} × {data['samples']}",
                f"{data['megabytes']:.1f} MB",
                f"{min(data['wall_s']):.2f}-{max(data['wall_s']):.2f} s",
                f"{statistics.median(data['cpu_s']):.2f} s",
                f"{data['load']:.1f}, {data['cores']}",
            )
        ],
    )


def targets(say: Say, precise: Path, long: Path, stamped: Path) -> str:
    """What was wanted and what was reached, computed from the files."""
    rows = []
    for what, wanted, found in (*_precise(precise), *_stamped(stamped), *_share(long)):
        if not found:
            rows.append((say(what), say(wanted), say("not measured"), ""))
            continue
        good = sum(one.met for one in found)
        worst = max(found, key=lambda one: one.badness).text
        reached = f"{good} {say('of')} {len(found)}{say(', ')}{say('worst')} {worst}"
        rows.append((say(what), say(wanted), reached, say("yes" if good == len(found) else "no")))
    return markdown([say(word) for word in ("what", "wanted", "reached", "met")], rows)


def report_page(say: Say, path: Path) -> str:
    """What the HTML report of a large run costs: wanted and reached."""
    data = json.loads(path.read_text("utf-8"))
    middle = {name: statistics.median(data[name]) for name in ("built_s", "built_cpu_s", "interactive_s", "sort_ms")}
    rows = [
        ("built, by the clock", "under 5 s", f"{middle['built_s']:.2g} s", middle["built_s"] < 5),
        ("built, of one CPU", "", f"{middle['built_cpu_s']:.2g} s", None),
        ("size", "under 8 MB", f"{data['page_mb']:.2g} MB", data["page_mb"] < 8),
        ("first sort answered", "under 2 s", f"{middle['interactive_s']:.2g} s", middle["interactive_s"] < 2),
        ("rows sorted, median", "under 100 ms", f"{middle['sort_ms']:.2g} ms", middle["sort_ms"] < 100),
        ("rows sorted, slowest", "", f"{max(data['sort_ms']):.3g} ms", None),
    ]
    known = [
        (what, wanted, reached, "" if met is None else "yes" if met else "no") for what, wanted, reached, met in rows
    ]
    machine = data["environment"]
    words = [
        machine["cpu"],
        f"{machine['cores']} cores",
        f"Chromium {data['chromium']}",
        f"medians of {len(data['built_s'])}",
    ]
    words += ["scheduled ahead of the other work on the machine"] if data["ahead_of_others"] else []
    return "\n".join(
        [
            markdown([say(word) for word in ("what", "wanted", "reached", "met")], known),
            "",
            f"{say('Measured on ')}{say(', ').join(words)}{say('.')}",
        ]
    )


def history(say: Say, path: Path) -> str:
    """What a large history takes and answers: wanted and reached."""
    data = json.loads(path.read_text("utf-8"))
    trend, steady = data["all_ms"], data["trends_asked"] - data["shifted_rows"]
    rows = [
        (f"records, with {data['samples']} samples each", "", f"{data['records']:,}", ""),
        ("size", "", f"{data['megabytes'] / 1024:.2g} GiB, {data['bytes_per_record']:.0f} B a record", ""),
        (
            "one row's trend with change points, median",
            "under 200 ms",
            f"{trend['median']:.0f} ms",
            "yes" if trend["median"] < 200 else "no",
        ),
        ("the slowest of them", "", f"{trend['max']:.0f} ms", ""),
        (
            "rows with a change: found",
            "all",
            f"{data['shifted_rows_found']} of {data['shifted_rows']}",
            "yes" if data["shifted_rows_found"] == data["shifted_rows"] else "no",
        ),
        (
            "rows without: an alarm",
            "none",
            f"{data['steady_rows_alarmed']} of {steady}",
            "yes" if not data["steady_rows_alarmed"] else "no",
        ),
    ]
    return markdown([say(word) for word in ("what", "wanted", "reached", "met")], rows)


def tuner(say: Say, path: Path) -> str:
    """What became of simulated races, and of a tuner that samples in sequence for the same time."""
    rows = []
    for row in json.loads(path.read_text("utf-8"))["settings"]:
        trials = row["trials"]
        rows.append(
            (
                row["setting"]["name"],
                f"{row['within']} {say('of')} {trials}",
                percent(row["worst_loss"]),
                f"{percent(row['mean_loss'])}, {percent(row['mean_stated_loss'])}",
                f"{row['covered']} {say('of')} {trials}, {percent(row['mean_stated_most'])}",
                percent(row["mean_stated_close"]),
                f"{percent(row['mean_share'])}, {percent(row['largest_share'])}",
                f"{row['usual_within']} {say('of')} {trials}, {percent(row['usual_worst_loss'])}",
            )
        )
    return markdown(
        [
            say(word)
            for word in (
                "landscape, noise",
                "pick within 1 %",
                "worst loss",
                "mean loss: true, stated",
                "true loss within the stated most: races, mean of it",
                "stated chance of 1 %",
                "sampling, of exhaustive: mean, most",
                "in sequence: within 1 %, worst",
            )
        ],
        rows,
    )


def median_ticks(say: Say, path: Path) -> str:
    """How often a median's interval holds the truth under a coarse timer."""
    import statistics_tables

    words = ("time and timer", "noise", "10 samples", "30", "100", "300", "without the tick")
    return markdown([say(word) for word in words], list(statistics_tables.tick_rows(path)))


def ratio_stops(say: Say, path: Path) -> str:
    """How often a ratio's interval holds the truth at the stop."""
    import statistics_tables

    words = ("noise of each subject's own", "0.2 %", "0.5 %", "1 %", "2 %")
    return markdown([say(word) for word in words], list(statistics_tables.stop_rows(path)))


def quiet_histories(say: Say, path: Path) -> str:
    """Alarms of quiet histories, and how soon a step is found."""
    import statistics_tables

    words = ("noise", "quiet: an alarm in a hundred looks", "step of 5 %: found after, half / nine in ten", "of 3 %")
    return markdown([say(word) for word in words], list(statistics_tables.change_rows(path)))


def tuner_card(say: Say, path: Path) -> str:
    """Races on a card against the exhaustive best."""
    data = json.loads(path.read_text("utf-8"))
    trials = data["trials"]
    rows = [
        (
            "configurations, right, within 1 % of the best",
            f"{data['configurations']}, {data['right']}, {data['near']}",
            "",
        ),
        (
            "pick within 1 % of the exhaustive best",
            f"{data['within']} of {len(trials)}, worst {percent(max(row['loss'] for row in trials))}",
            "at least 19 of 20",
        ),
        ("sampling, of exhaustive", f"{percent(max(row['share'] for row in trials))} at most", "at most 20 %"),
        ("a race, by the clock", f"{statistics.median(row['wall_s'] for row in trials):.1f} s", ""),
        (
            "compiling ahead and checking, once",
            f"{data['seconds']['compile']:.0f} s, {data['seconds']['check']:.0f} s",
            "",
        ),
    ]
    return "\n".join(
        [
            markdown(("what", "reached", "wanted"), rows),
            "",
            f"{data['backend']}, {data['case_id']}.",
            where(data["environment"], say),
        ]
    )


def flash_kernels(mode: str) -> Callable[..., str]:
    """Our FlashAttention beside its peers, in one mode."""

    def render(say: Say, *paths: Path) -> str:
        import flash
        import kernel_tables

        runs = [kernel_tables.load(path) for path in paths]
        peers = [f"`{name}`" for name in flash.PEERS[mode]]
        words = ("head dim", "length", "mask", "ours", *peers, "bar", "met", "aim", "met")
        rows = [row for run in runs for row in kernel_tables.flash_rows(run, mode)]
        return measured_kernels(say, words, rows, runs[0], kernel_tables.clock(runs[0], mode))

    return render


def flash_ladder(say: Say, path: Path) -> str:
    """Steps of the flash forward that were raced, each against the best peer and the one before."""
    import kernel_tables

    run = kernel_tables.load(path)
    side = ("of the best peer", "gain")
    words = ("head dim", "step", "configuration", "causal", *side, "full", *side)
    return measured_kernels(say, words, kernel_tables.ladder_rows(run), run, kernel_tables.clock(run, "fwd"))


def flash_sparse(say: Say, path: Path) -> str:
    """Our block-sparse attention beside our dense forward, over density."""
    import kernel_tables

    data = json.loads(path.read_text("utf-8"))
    words = (
        "block",
        "head dim",
        "length",
        "mask",
        "density",
        "dense, ms",
        "equal rows, ms",
        "E",
        "unequal rows, ms",
        "E",
        "bar",
        "met",
        "lists, of dense",
    )
    return "\n".join(
        [
            markdown([say(word) for word in words], kernel_tables.sparse_rows(data)),
            "",
            f"{where(data['environment'], say)} {kernel_tables.sparse_clock(data)}.",
        ]
    )


def flash_sparse_forms(say: Say, path: Path) -> str:
    """Configurations of the block-sparse forward that were raced."""
    import kernel_tables

    data = json.loads(path.read_text("utf-8"))
    words = (
        "block",
        "head dim",
        "length",
        "configuration",
        "default",
        *(f"E at {kept:g}" for kept in kernel_tables.SPARSE_DENSITIES),
    )
    return "\n".join(
        [
            markdown([say(word) for word in words], kernel_tables.sparse_form_rows(data)),
            "",
            f"{where(data['environment'], say)} {kernel_tables.sparse_clock(data)}.",
        ]
    )


def flash_quant(words: str, rows: str) -> Callable[..., str]:
    """Our attention in 8 bits, dense or block-sparse, by the names of `quant_tables` for its head and its rows."""

    def render(say: Say, path: Path) -> str:
        import quant_tables

        data = json.loads(path.read_text("utf-8"))
        head = [say(word) for word in getattr(quant_tables, words)]
        table = markdown(head, getattr(quant_tables, rows)(data))
        return "\n".join([table, "", f"{where(data['environment'], say)} {quant_tables.clock(data)}."])

    return render


def ladder(say: Say, path: Path) -> str:
    """What each step of a kernel of 8 bits or block-sparse is worth."""
    import quant_tables

    data = json.loads(path.read_text("utf-8"))
    head, rows = quant_tables.ladder_table(data)
    table = markdown([say(word) for word in head], rows)
    return "\n".join([table, "", f"{where(data['environment'], say)} {quant_tables.clock(data)}."])


def hstu_kernels(mode: str) -> Callable[..., str]:
    """Our dense HSTU attention beside NVIDIA's, in one mode."""

    def render(say: Say, path: Path) -> str:
        import kernel_tables

        run = kernel_tables.load(path)
        words = (
            "heads",
            "dim",
            "length",
            "`hstu-fbgemm`",
            "from earlier",
            "ours",
            "TFLOP/s",
            "ratio",
            "bar",
            "met",
            "aim",
            "met",
        )
        low, high = kernel_tables.drift(run, mode)
        text = measured_kernels(say, words, kernel_tables.hstu_rows(run, mode), run, kernel_tables.clock(run, mode))
        return f"{text} `hstu-fbgemm` lies {100 * low:.0f} to {100 * high:.0f} % over what do_bench took earlier."

    return render


def hstu_sparse(say: Say, *paths: Path) -> str:
    """Block-sparse HSTU attention beside the dense function."""
    import kernel_tables

    runs = [kernel_tables.load(path) for path in paths]
    run = replace(runs[0], records=tuple(record for one in runs for record in one.records))
    words = (
        "heads",
        "dims",
        "length",
        "ours",
        "ms",
        *(f"over `{name}`" for name in kernel_tables.DENSE),
        "bar",
        "met",
        "aim",
        "met",
    )
    mode = run.records[0].case["mode"]
    return measured_kernels(say, words, kernel_tables.bsa_rows(run), run, kernel_tables.clock(run, mode))


def hstu_few(say: Say, *paths: Path) -> str:
    """Calls of dense HSTU with few query tiles: tiles of 128 rows beside those of 192."""
    import kernel_tables

    runs = [kernel_tables.load(path) for path in paths]
    words = ("dims", "rows", "rounds of tiles of 128 rows", "of 192 rows, µs", "of 128 rows, µs", "gain")
    rows = sorted(
        (row for run in runs for row in kernel_tables.few_rows(run)), key=lambda row: [int(x) for x in row[:2]]
    )
    return measured_kernels(say, words, rows, runs[0], kernel_tables.clock(runs[0], "fwd"))


def hstu_uneven(say: Say, path: Path) -> str:
    """Our dense HSTU forward over uneven lengths, beside whole sequences of the same work."""
    import kernel_tables

    run = kernel_tables.load(path)
    words = ("heads", "dims", "length", "whole", "uneven", "of it", "bar", "met")
    return measured_kernels(say, words, kernel_tables.jagged_rows(run), run, kernel_tables.clock(run, "fwd"))


OURS = {
    "flash fwd": "flash-fwd-h200.json",
    "flash bwd": "flash-bwd-h200.json",
    "flash bwd 256": "flash-bwd-256-h200.json",
    "dense fwd": "hstu-dense-fwd-h200.json",
    "dense bwd": "hstu-dense-bwd-h200.json",
    "sparse fwd": "hstu-bsa-fwd-h200.json",
    "quant": "quant-h200.json",
    "mapped": "sparse-cudnn-bsa-h200.json",
}
"""Run files of the README's first table."""


SPEED = OURS | {
    "flash fwd 96": "flash-double-96-h200.json",
    "flash fwd dims": "flash-dims-h200.json",
    "flash sweep": "suite-flash-sweep-h200.json",
    "few tiles 64": "suite-few-tiles-64-h200.json",
    "few tiles 96": "suite-few-tiles-96-h200.json",
    "few tiles 128": "suite-few-tiles-128-h200.json",
    "decode": "suite-decode-h200.json",
    "decode flashinfer": "suite-decode-flashinfer-h200.json",
    **{f"serial bwd {name}": f"hstu-bwd-serial-{name}-h200.json" for name in ("128", "64", "32", "uneven")},
    "flash fwd 32768": "flash-fwd-32768-h200.json",
    "uneven": "hstu-jagged-h200.json",
    "few queries": "hstu-paged-h200.json",
    "sparse 16384": "hstu-bsa-16384-h200.json",
}
"""Run files in which our kernels are held against what is wanted of them."""


def speed(say: Say, *paths: Path) -> str:
    """Each wish: where it was measured, the worst and the best row, and how many reach bar and aim."""
    import speed_tables

    return markdown([say(word) for word in speed_tables.HEAD], speed_tables.rows(dict(zip(SPEED, paths, strict=True))))


def our_kernels(say: Say, *paths: Path) -> str:
    """Each of our kernels beside the fastest peer of its group."""
    import kernel_tables
    import sparse_tables

    from attnbench.record import to_dict

    runs = dict(zip(OURS, map(kernel_tables.load, paths), strict=True))
    rows = kernel_tables.ours_rows(runs) + sparse_tables.ours_rows(runs["quant"], runs["mapped"])
    words = ("kernel", "shape", "TFLOP/s", "fastest other", "TFLOP/s", "ours over it")
    return "\n".join(
        [markdown([say(word) for word in words], rows), "", where(to_dict(runs["flash fwd"].environments[0]), say)]
    )


def launch_counters(say: Say, path: Path) -> str:
    """What Nsight Compute counts of each kernel of some calls."""
    import kernel_tables

    data = json.loads(path.read_text("utf-8"))["captures"]
    words = "case", "kernel", "µs", "tensor cores", "L2", "HBM", "hits of code", "MB of HBM", "largest stalls"
    return "\n".join(
        [
            markdown([say(word) for word in words], kernel_tables.launch_rows(data)),
            "",
            f"Nsight Compute {data[0]['tool_version']} on {data[0]['device']}; cold caches, free clocks.",
        ]
    )


def flash_counters(say: Say, path: Path) -> str:
    """What Nsight Compute counts of our flash forward and of its peers."""
    import kernel_tables

    data = json.loads(path.read_text("utf-8"))["captures"]
    words = (
        "case",
        "backend",
        "cycles",
        "SM MHz",
        "tensor cores",
        "L2",
        "hits of code",
        "time without an instruction",
        "time for loads",
    )
    return "\n".join(
        [
            markdown([say(word) for word in words], kernel_tables.counter_rows(data)),
            "",
            f"Nsight Compute {data[0]['tool_version']} on {data[0]['device']}; cold caches, free clocks.",
        ]
    )


def measured_kernels(say: Say, words: Row, rows: Iterable[Row], run: Any, clock: str) -> str:
    """A table of useful TFLOP/s with where, at which clock and in which regime."""
    from attnbench.record import to_dict

    regimes = ", ".join(sorted({one.time.regime for one in run.records if one.time}))
    return "\n".join(
        [
            markdown([say(word) for word in words], rows),
            "",
            f"{where(to_dict(run.environments[0]), say)} Samples: {regimes}; {clock}.",
        ]
    )


def call_cost_rows_only(say: Say, path: Path) -> str:
    """Host time of kept calls, of shapes never seen and of numbers of rows never seen, all of one process."""
    import call_cost_rows

    data = json.loads(path.read_text("utf-8"))
    found = [line[:3] for line in call_cost_rows.rows(data, data)]
    words = ("call", "median", "tenth to ninetieth percentile")
    return "\n".join([markdown([say(word) for word in words], found), "", where(data["environment"], say)])


def call_cost_cpu(say: Say, path: Path) -> str:
    """Host time of calls that launch nothing, as a multiple of the forward of flash, and how many Python calls they make."""
    data = json.loads(path.read_text("utf-8"))
    calls = data["calls"]
    rows = [
        (
            f"`{name}`",
            f"{found['median_us']:.0f} µs",
            f"{found['low_us']:.0f} to {found['high_us']:.0f}",
            f"{found['median_us'] / calls['flash']['median_us']:.1f}",
            str(found["python_calls"]),
        )
        for name, found in calls.items()
    ]
    rows += [
        (say("`{name}`, a new shape").format(name=name), "", "", "", str(found["python_calls"]))
        for name, found in data["new_shapes"].items()
    ]
    words = ("call", "median", "tenth to ninetieth percentile", "over `flash`", "Python functions called")
    return markdown([say(word) for word in words], rows)


def call_cost(say: Say, path: Path, earlier: Path) -> str:
    """Host time of a warm eager call, now and before calls were kept."""
    import call_cost_rows

    data, before = (json.loads(one.read_text("utf-8")) for one in (path, earlier))
    words = ("call", "median", "tenth to ninetieth percentile", "before calls were kept", "bar", "met")
    return "\n".join(
        [
            markdown([say(word) for word in words], call_cost_rows.rows(data, before)),
            "",
            where(data["environment"], say),
        ]
    )


def hstu_paged(say: Say, path: Path) -> str:
    """The paged HSTU kernel and split keys: time of a layer in a graph, rate, and speed over the contiguous kernel."""
    data = json.loads(path.read_text("utf-8"))
    rows = []
    for item in data["rows"]:
        shape, dims = item["row"].split("-d")
        for name, us in item["us"].items():
            ratio = f"{item['ratios'][name][0]:.3f}" if name in item["ratios"] else ""
            rows.append((shape.replace("x", " × "), dims, name, f"{us:.1f} µs", f"{item['tflops'][name]:.0f}", ratio))
    words = ("users × candidates", "dims", "kernel", "a layer", "TFLOP/s", "speed over `contiguous`")
    return "\n".join([markdown([say(word) for word in words], rows), "", where(data["environment"], say)])


def serving_sweep(say: Say, *paths: Path) -> str:
    """Ranking steps by batch, candidates and cached tokens."""
    import serving_tables

    there = [path for path in paths if path.is_file()]
    return _of_runs(say, serving_tables.SWEEP, serving_tables.sweep_rows(map(_run, there)), there[0])


def serving_host_hits(say: Say, path: Path) -> str:
    """Cached tokens in host memory: brought back, computed again, or what is measured to be quicker."""
    import serving_tables

    return _of_runs(say, serving_tables.HOST_HITS, serving_tables.host_hit_rows(_run(path)), path)


def serving_pool(say: Say, path: Path) -> str:
    """Steps over pools of several sizes."""
    import serving_tables

    return _of_runs(say, serving_tables.POOL, serving_tables.pool_rows(_run(path)), path)


def serving_explained(say: Say, path: Path) -> str:
    """Steps predicted from the attention of another row, and measured."""
    import serving_tables

    return _of_runs(say, serving_tables.EXPLAINED, serving_tables.explained_rows(_run(path)), path)


def serving_steps(say: Say, path: Path) -> str:
    """Percentiles of many steps."""
    import serving_tables

    return _of_runs(say, serving_tables.STEPS, serving_tables.step_rows(_run(path)), path)


def serving_stack(say: Say, path: Path) -> str:
    """The layers of DLRMv3 alone."""
    import serving_tables

    data = json.loads(path.read_text("utf-8"))
    table = markdown([say(word) for word in serving_tables.STACK], serving_tables.stack_rows(path))
    return "\n".join([table, "", where(data["environment"], say)])


def serving_bars(say: Say, *paths: Path) -> str:
    """What serving is to reach, and what is reached."""
    import serving_bars

    return markdown([say(word) for word in serving_bars.HEAD], serving_bars.bar_rows(paths[0].parent))


def _run(path: Path) -> Run:
    import kernel_tables

    return kernel_tables.load(path)


def _of_runs(say: Say, head: Sequence[str], rows: Sequence[Sequence[str]], path: Path) -> str:
    from attnbench.record import to_dict

    return "\n".join(
        [markdown([say(word) for word in head], rows), "", where(to_dict(_run(path).environments[0]), say)]
    )


def sparse_peers(say: Say, path: Path) -> str:
    """Block-sparse kernels on one map: time, both rates, density, E, and phases before the kernel."""
    import kernel_tables
    import sparse_tables

    from attnbench.record import to_dict

    run = kernel_tables.load(path)
    words = ("backend", "ms", "TFLOP/s", "effective TFLOP/s", "density", "E", "predict µs", "convert µs")
    rows = sparse_tables.peer_rows(run)
    return "\n".join([markdown([say(word) for word in words], rows), "", where(to_dict(run.environments[0]), say)])


def sparse_table(rows_of: str, *options: Any) -> Callable[..., str]:
    """A table that a function of `sparse_tables` makes of a run, or of several runs of the same cards and backends."""

    def render(say: Say, *paths: Path) -> str:
        import kernel_tables
        import sparse_tables

        from attnbench.presentation.sparse import break_even
        from attnbench.record import to_dict

        runs = [kernel_tables.load(path) for path in paths]
        run = replace(runs[0], records=[record for one in runs for record in one.records])
        head, rows = getattr(sparse_tables, rows_of)(run, *options)
        said = [f"- {sentence}" for sentence in break_even(run.records)]
        end = [where(to_dict(run.environments[0]), say)]
        return "\n".join([markdown([say(word) for word in head], rows), "", *said, *[""] * bool(said), *end])

    return render


def suite(say: Say, path: Path) -> str:
    """A run of a suite: its command, its matrices, who is fastest, what is missing."""
    import suite_tables

    return f"`{suite_tables.command(path)}`\n\n{own_suite(say, path)}"


def own_suite(say: Say, path: Path) -> str:
    """The same of a suite that is not shipped, so that nobody can give its command."""
    import kernel_tables
    import suite_tables

    from attnbench.record import to_dict

    lines: list[str] = []
    for title, head, rows in suite_tables.parts(path):
        lines += [f"{title}:", "", markdown(head, rows), ""]
    lines += [*suite_tables.sentences(path), where(to_dict(kernel_tables.load(path).environments[0]), say)]
    return "\n".join(lines)


def loads(say: Say, *paths: Path) -> str:
    """Latency over rate of models under load."""
    import load_tables

    rows = load_tables.load_rows(paths)
    return (
        f"{markdown([say(word) for word in load_tables.HEAD], rows)}\n\n"
        + say("Measured on ")
        + (load_tables.machine_of(paths) + say("."))
    )


def over_gpus(say: Say, *paths: Path) -> str:
    """Attention over two GPUs: times, and what the best form has to reach."""
    import context_parallel
    import kernel_tables

    from attnbench.record import to_dict

    runs = [kernel_tables.load(path) for path in paths]
    ends = {where(to_dict(run.environments[0]), say) for run in runs}
    return "\n".join([markdown(context_parallel.HEAD, context_parallel.table(runs)), "", *sorted(ends)])


def scaled(say: Say, *paths: Path) -> str:
    """Sweeps on two GPUs, beside a busy neighbour and through Ray."""
    import scale_tables

    ends = {where(one, say) for one in scale_tables.environments(paths)}
    return "\n".join([markdown(scale_tables.HEAD, scale_tables.rows(paths)), "", *sorted(ends)])


def soaked(say: Say, path: Path) -> str:
    """Two hours of runs under random kills."""
    found = json.loads(path.read_text("utf-8"))
    heads = ("rounds", "rows", "kills", "stops", "killed_twice", "grown_mib", "grown_descriptors")
    words = ("runs", "rows", "workers killed", "runs stopped", "rows killed twice", "memory, MiB", "descriptors")
    return markdown([say(word) for word in words], [[f"{found[head]:,}" for head in heads]])


def generators(say: Say, path: Path) -> str:
    """How exact the generators are on an idle machine."""
    import load_tables

    return markdown([say(word) for word in load_tables.GENERATOR_HEAD], load_tables.generator_rows(path))


def video_targets(say: Say, path: Path, *_: Path) -> str:
    """What the video rows have to reach."""
    import video_targets as targets

    ends = {where(one, say) for one in targets.environments(path.parent)}
    table = markdown([say(word) for word in targets.HEAD], targets.rows(path.parent))
    return "\n".join([table, "", *sorted(ends)])


def video_steps(say: Say, path: Path) -> str:
    """Steps and generations of a run, as the terminal shows them."""
    from attnbench.presentation.video import video
    from attnbench.record import to_dict

    run = _run(path)
    steps = video("", run.records, run.records[0].backend)[0]
    rows = [[line.cells.get(column.key, "") for column in steps.columns] for line in steps.lines]
    table = markdown([say(column.title) for column in steps.columns], rows)
    return "\n".join([table, "", where(to_dict(run.environments[0]), say)])


def video_kernels(say: Say, path: Path) -> str:
    """Seed 003's table of whole generations, a column a capture."""
    from attnbench.profile import seed_003, sources
    from attnbench.profile.categories import load

    table = seed_003.table(sources.read(path, load()))
    lines = [f"- {note}" for note in table.notes]
    return "\n".join([markdown(table.heads, [[str(cell) for cell in row] for row in table.rows]), "", *lines])


VIDEO = tuple(
    f"video-{name}-h200.json"
    for name in ("eager", "compiled", "sparse", "wan", "loop", "repeats", "seconds", "captures")
)
"""Committed runs of the video rows (`video_targets.FILES`; a test holds the two against each other)."""
SUITES = (
    "hstu-bsa",
    "flash-sweep",
    "minimal",
    "compare",
    "scenarios",
    "sustained",
    "timers",
    "replicates",
    "decode",
    "decode-flashinfer",
    "paged",
    "flash-96",
    "few-tiles-64",
    "few-tiles-96",
    "few-tiles-128",
)
"""Runs of whole suites on a card, and of what else a run can be asked for."""
LOADS = (
    "load-dlrm-v3-offline-h200.json",
    "load-dlrm-v3-server-h200.json",
    "load-dlrm-v3-848-h200.json",
    "load-bench-h200.json",
    "load-bench-graph-h200.json",
    "load-replay-h200.json",
)
POOLS = tuple(
    f"load-pool-{name}-h200.json"
    for name in ("100", "40", "100-graph", "40-graph", "40-reload", "40-recompute", "40-auto")
)
"""Users who return, with a pool for all of them or for 40 %, launch by launch, as graphs, and with host memory."""
FEW = ("128-1024", "128-2048", "128-6144", "128-12288", "64-2048", "64-4096", "64-8192")
"Calls of dense HSTU with few query tiles: dims and rows."
LONG_ROWS = ("128k-causal-1", "128k-causal-2", "128k-causal-3", "128k-causal-forms", "128k-full-1", "128k-full-forms")
"Processes of the cases of 131072 rows."
OVER_GPUS = tuple(
    f"cp-{name}-2xh200.json" for name in ("8k", "32k", "libraries", "gqa", *LONG_ROWS, "hstu-long", "hstu")
)
"""Context-parallel attention; a run of each part of the suite."""
SCALED = tuple(f"scaled-{name}.json" for name in ("2xh200", "ray-2xh200", "turns-2xh200", "ray-h200"))
"Sweeps over two GPUs, through Ray, and beside a busy neighbour."
TABLES = {
    "backends": Table((), backends),
    "quick-cpu": Table(("quick-cpu.json",), on_cpu),
    "quick-h200": Table(("quick-h200.json",), on_card),
    "precision-h200": Table(("precision-h200.json",), precision),
    "power-limit-h200": Table(("precision-h200.json",), power_limit),
    "known-answers-h200": Table(("precision-h200.json",), known_answers),
    "overhead-h200": Table(("overhead-h200.json",), overhead),
    "ours-h200": Table(tuple(OURS.values()), our_kernels),
    "speed-h200": Table(tuple(SPEED.values()), speed),
    "flash-fwd-h200": Table(("flash-fwd-h200.json",), flash_kernels("fwd")),
    "flash-bwd-h200": Table(tuple(f"flash-bwd{dims}-h200.json" for dims in ("", "-96", "-256")), flash_kernels("bwd")),
    "hstu-few-h200": Table(
        tuple(f"hstu-few-{name}-h200.json" for name in (*FEW, *(f"parts-{rows}" for rows in (4096, 8192, 16384)))),
        hstu_few,
    ),
    "flash-ladder-h200": Table(("flash-forms-h200.json",), flash_ladder),
    "flash-sparse-h200": Table(("flash-sparse-h200.json",), flash_sparse),
    "flash-sparse-forms-h200": Table(("flash-sparse-h200.json",), flash_sparse_forms),
    "flash-quant-h200": Table(("flash-quant-h200.json",), flash_quant("SPEED", "speed_rows")),
    "flash-quant-forms-h200": Table(("flash-quant-forms-h200.json",), flash_quant("FORMS", "form_rows")),
    "flash-sparse-quant-h200": Table(("flash-sparse-quant-h200.json",), flash_quant("SPARSE", "sparse_rows")),
    "flash-sparse-quant-forms-h200": Table(
        ("flash-sparse-quant-forms-h200.json",), flash_quant("SPARSE_FORMS", "sparse_form_rows")
    ),
    "hstu-dense-fwd-h200": Table(("hstu-dense-fwd-h200.json",), hstu_kernels("fwd")),
    "flash-ncu-h200": Table(("flash-ncu-h200.json",), flash_counters),
    "flash-quant-ncu-h200": Table(("flash-quant-ncu-h200.json",), launch_counters),
    **{
        f"{kernel}-ladder-h200": Table((f"{kernel}-ladder-h200.json",), ladder)
        for kernel in ("flash-sparse", "flash-quant", "flash-sparse-quant")
    },
    "flash-sparse-ncu-64-h200": Table(("flash-sparse-ncu-64-h200.json",), launch_counters),
    "flash-sparse-quant-ncu-h200": Table(("flash-sparse-quant-ncu-h200.json",), launch_counters),
    "hstu-jagged-h200": Table(("hstu-jagged-h200.json",), hstu_uneven),
    "hstu-dense-bwd-h200": Table(("hstu-dense-bwd-h200.json",), hstu_kernels("bwd")),
    "hstu-dense-bwd-256-h200": Table(("hstu-dense-bwd-256-h200.json",), suite),
    "hstu-dense-bwd-wide-h200": Table(("hstu-dense-bwd-wide-h200.json",), own_suite),
    "hstu-dense-bwd-before-h200": Table(("hstu-dense-bwd-before-h200.json",), hstu_kernels("bwd")),
    "hstu-bsa-fwd-h200": Table(("hstu-bsa-fwd-h200.json", "hstu-bsa-16384-h200.json"), hstu_sparse),
    "hstu-bsa-fwd-bwd-h200": Table(("hstu-bsa-fwd-bwd-h200.json",), hstu_sparse),
    "hstu-paged-h200": Table(("hstu-paged-h200.json",), hstu_paged),
    "diff-simulated": Table(("diff-simulated.json",), compared),
    "diff-not-promised": Table(("diff-simulated.json",), functools.partial(compared, key="not_promised")),
    "diff-h200": Table(("diff-h200.json",), compared_card),
    "intervals-ticks": Table(("intervals-simulated.json",), median_ticks),
    "intervals-stop": Table(("intervals-simulated.json",), ratio_stops),
    "change-points": Table(("change-points-simulated.json",), quiet_histories),
    "tuner-simulated": Table(("tuner-simulated.json",), tuner),
    "tuner-h200": Table(("tuner-h200.json",), tuner_card),
    "diff-speed": Table(("diff-simulated.json",), compared_speed),
    "report": Table(("report.json",), report_page),
    "serving-h200": Table(("hstu-serving-h200.json",), serving_sweep),
    "serving-kuairand-h200": Table(("hstu-serving-kuairand-h200.json",), serving_sweep),
    "serving-explained-h200": Table(("hstu-serving-explained-h200.json",), serving_explained),
    "serving-steps-h200": Table(("hstu-serving-steps-h200.json",), serving_steps),
    "serving-host-hits-h200": Table(("hstu-serving-host-hits-h200.json",), serving_host_hits),
    "serving-stack-h200": Table(("serving-stack-h200.json",), serving_stack),
    "serving-bars-h200": Table(
        (
            "hstu-serving-h200.json",
            "hstu-serving-steps-h200.json",
            "hstu-serving-host-hits-h200.json",
            "hstu-paged-h200.json",
            "serving-stack-h200.json",
            "load-dlrm-v3-offline-h200.json",
            "load-dlrm-v3-848-h200.json",
            "load-pool-40-auto-h200.json",
            "load-generator-h200.jsonl",
            "serving-offload-h200.json",
        ),
        serving_bars,
    ),
    "sparse-peers-h200": Table(("sparse-peers-h200.json",), sparse_peers),
    "sparse-predictors-h200": Table(("sparse-predictors-h200.json",), sparse_peers),
    "sparse-cudnn-bsa-h200": Table(("sparse-cudnn-bsa-h200.json",), sparse_peers),
    "sparse-h200": Table(("sparse-h200.json",), sparse_table("sweep")),
    "sparse-length-h200": Table(("sparse-length-h200.json", "sparse-length-32768-h200.json"), sparse_table("lengths")),
    "quant-h200": Table(("quant-h200.json",), sparse_table("quantised")),
    "quant-errors-h200": Table(("quant-h200.json",), sparse_table("distances", 4096)),
    "load-h200": Table(LOADS, loads),
    "load-pools-h200": Table(POOLS, loads),
    "load-find-rate-h200": Table(("load-find-rate-h200.json",), loads),
    "load-generator-h200": Table(("load-generator-h200.jsonl",), generators),
    "call-cost-rows-h200": Table(("call-cost-rows-h200.json",), call_cost_rows_only),
    "call-cost-cpu": Table(("call-cost-cpu.json",), call_cost_cpu),
    "call-cost-h200": Table(("call-cost-h200.json", "call-cost-before-h200.json"), call_cost),
    **{f"suite-{name}-h200": Table((f"suite-{name}-h200.json",), suite) for name in SUITES},
    **{
        name: Table((f"{name}.json",), suite)
        for name in (
            "suite-hstu-meta-h100",
            "hstu-serving-growth-h200",
            "hstu-serving-pool-h200",
            *(f"hstu-bwd-serial-{name}-h200" for name in ("128", "64", "32", "uneven")),
            *(f"sparse-pairs-{name}-h200" for name in ("64x64", "16384", "128x64", "d64")),
            "serving-shapes-attention-h200",
            "flash-fwd-32768-h200",
            "flash-dims-h200",
            "flash-joint-160-h200",
            "flash-joint-192-h200",
            "flash-wide-short-h200",
            "flash-double-128-h200",
            "flash-double-96-h200",
            "flash-sparse-double-64-h200",
            "flash-4-h200",
            "flash-4-bwd-h200",
            "quant-sage2-h200",
            "sparse-64-cudnn-bsa-h200",
            "sparse-64-vsa-h200",
            "sparse-64-flashinfer-h200",
            "sparse-sta-h200",
            "sparse-sparge-h200",
            "sparse-sparge-given-h200",
            "sparse-flashinfer-h200",
            "cp-libraries-2xh200",
        )
    },
    "context-parallel-2xh200": Table(OVER_GPUS, over_gpus),
    "scaled-2xh200": Table(SCALED, scaled),
    "scaled-turns-warmed-2xh200": Table(("scaled-turns-warmed-2xh200.json",), scaled),
    "soak-cpu": Table(("soak-cpu.json",), soaked),
    "history": Table(("history.json",), history),
    "stamps-h200": Table(("stamps-h200.json",), stamps),
    "video-kernels-h200": Table(("video-captures-h200.json",), video_kernels),
    "video-targets-h200": Table(VIDEO, video_targets),
    "video-compiled-h200": Table(("video-compiled-h200.json",), video_steps),
    "video-eager-h200": Table(("video-eager-h200.json",), video_steps),
    "video-wan-h200": Table(("video-wan-h200.json",), video_steps),
    "targets-h200": Table(("precision-h200.json", "overhead-h200.json", "stamps-h200.json"), targets),
}


# ── what was wanted ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Finding:
    """One figure held against what was wanted of it."""

    met: bool
    badness: float
    text: str


def _precise(path: Path) -> list[tuple[str, str, list[Finding]]]:
    data = json.loads(path.read_text("utf-8")) if path.is_file() else {"aa": [], "ab": []}
    kernels = [(statistics.median(row["median_ms"] for row in item["rows"]), item) for item in data["aa"]]
    short = [(ms, item) for ms, item in kernels if ms < SHORT_MS]
    long = [item for ms, item in kernels if ms > LONG_MS]
    return [
        (
            "spread of the median, under 30 µs",
            "at most 2 % or a tick",
            [_spread(ms, item["rows"]) for ms, item in short],
        ),
        ("A/A ratio, over 0.5 ms", "1 ± 0.1 %", [_ratio(row, 0.001, 0.0) for item in long for row in item["rows"]]),
        (
            "A/A ratio, at the power limit",
            "1 ± 0.1 %",
            [_ratio(row, 0.001, 0.0) for item in data.get("sustained", ()) for row in item["rows"]],
        ),
        (
            "A/A ratio, under 30 µs",
            "1 ± 0.2 % or a tick",
            [_ratio(row, 0.002, TICK_MS / ms) for ms, item in short for row in item["rows"]],
        ),
        (
            "1 % found with the right sign",
            "all",
            [_sign(row, item["true"]) for item in data["ab"] for row in item["rows"]],
        ),
        ("device time a backend, against do_bench's", "no more", [_cost(item["rows"]) for item in data["aa"]]),
    ]


def _spread(ms: float, rows: Sequence[dict[str, Any]]) -> Finding:
    size = spread([row["median_ms"] for row in rows])
    return Finding(size <= max(0.02, 1.01 * TICK_MS / ms), size, percent(size))


def _stamped(path: Path) -> list[tuple[str, str, list[Finding]]]:
    """CUPTI's durations, less what an empty kernel has of it, against what kernels stamped themselves."""
    kernels = json.loads(path.read_text("utf-8"))["kernels"] if path.is_file() else {}
    found = []
    for tools in kernels.values():
        truth = statistics.median(tools["cupti"]["truth_ms"])
        off = abs(beyond(tools["cupti"]) - beyond(kernels["spin 0 on 132"]["cupti"]))
        found.append(Finding(off <= max(0.03 * truth, 3e-4), off, f"{1e3 * off:.2f} µs"))
    return [("CUPTI beyond a kernel's own stamps, less an empty kernel's", "within 3 % or 0.3 µs", found)]


def _sign(row: dict[str, Any], true: float) -> Finding:
    """Found is what the whole interval says."""
    ends = (row["low"], row["high"])
    met = None not in ends and (max(ends) < 1 if true < 1 else min(ends) > 1)
    return Finding(met, abs(row["ratio"] - true), f"{row['ratio']:.5f}")


def _cost(rows: Sequence[dict[str, Any]]) -> Finding:
    ours, theirs = (statistics.median(row[key] for row in rows) for key in ("device_s_per_backend", "do_bench_s"))
    return Finding(ours <= theirs, ours / theirs, f"{ours:.2g} s / {theirs:.2g} s")


def _ratio(row: dict[str, Any], share: float, tick: float) -> Finding:
    off = abs(row["ratio"] - 1)
    return Finding(off <= max(share, tick), off, f"{row['ratio']:.5f}")


def _share(path: Path) -> list[tuple[str, str, list[Finding]]]:
    shares = [json.loads(path.read_text("utf-8"))["share"]] if path.is_file() else []
    return [("wall time spent sampling", "at least 60 %", [Finding(one >= 0.6, -one, percent(one)) for one in shares])]


def spread(values: Sequence[float]) -> float:
    """(max - min) / median."""
    return (max(values) - min(values)) / statistics.median(values)


def worst(rows: Iterable[dict[str, Any]]) -> float:
    """The ratio furthest from 1."""
    return max((row["ratio"] for row in rows), key=lambda ratio: abs(ratio - 1))


def label(kernel: Sequence[Any]) -> str:
    """A kernel of the benchmark: which, and its shape."""
    *shape, kind = kernel
    return f"{kind} {', '.join(map(str, shape))}"


def clocks(rows: Iterable[dict[str, Any]]) -> str:
    """Lowest and highest SM clock over repeats."""
    seen = [mhz for row in rows if row["sm_mhz"] for mhz in row["sm_mhz"]]
    return f"{min(seen):.0f}-{max(seen):.0f} MHz" if seen else ""


def kernel_alone(rows: Sequence[dict[str, Any]]) -> float:
    """Milliseconds of the last kernel of a call, which is the one that Nsight Compute was asked for."""
    return statistics.median(row["kernel_ms"][-1] for row in rows)


def markdown(head: Row, rows: Iterable[Row]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def time(ms: float) -> str:
    """Four digits, in the unit that suits."""
    return f"{1e3 * ms:.4g} µs" if ms < 0.5 else f"{ms:.4g} ms"


def percent(share: float) -> str:
    """Two digits."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def where(environment: dict[str, Any], say: Say) -> str:
    """What it was measured on."""
    words = [
        environment["gpu"],
        f"driver {environment['driver']}",
        f"torch {environment['torch']}",
        f"triton {environment['triton']}",
    ]
    return f"{say('Measured on ')}{say(', ').join(words)}{say('.')}"


# ── into the documents ─────────────────────────────────────────────────────────────────────────────


def documents(root: Path = ROOT) -> list[Path]:
    """Every document that may hold a table."""
    patterns = ("*.md", "docs/*.md", "docs/kernels/*.md", "examples/*.md")
    return [path for pattern in patterns for path in sorted(root.glob(pattern))]


def render(name: str, say: Say, results: Path = RESULTS) -> str:
    """The text of a table.

    Raises:
        ValueError: there is no such table.
    """
    if name not in TABLES:
        raise ValueError(f"tables: name={name} is not known; one of {', '.join(TABLES)}")
    table = TABLES[name]
    paths = [results / file for file in table.files]
    if paths and not any(path.is_file() for path in paths):
        return say("Not measured yet.")
    return table.render(say, *paths)


def renewed(text: str, say: Say, results: Path = RESULTS) -> str:
    """A document with its tables made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}{render(match['name'], say, results)}\n{match[4]}", text)


def language(path: Path) -> Say:
    """How a document words the tables."""
    return CHINESE.__getitem__ if path.name.endswith(".zh-CN.md") else str


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the tables of all documents."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the tables into the documents")
    parser.add_argument("--check", action="store_true", help="exit 1 where a table is stale")
    args = parser.parse_args(argv)
    if args.write == args.check:
        parser.error("one of --write, --check")
    stale = 0
    for path in documents():
        old = path.read_text("utf-8")
        new = renewed(old, language(path))
        if new == old:
            continue
        stale += 1
        if args.write:
            path.write_text(new, "utf-8")
            print(f"written: {path.relative_to(ROOT)}")
        else:
            changes = difflib.unified_diff(old.splitlines(), new.splitlines(), path.name, "its files", lineterm="")
            print("\n".join(changes))
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
