"""Reads LoadGen's files: schedule and latency of each sample from its trace, and its summary."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from attnbench.errors import AttnbenchError

TRACE, SUMMARY = "mlperf_log_trace.json", "mlperf_log_summary.txt"
SAMPLE = re.compile(
    r'"name":"Sample".*?"ph":"b".*?"ts":(?P<ts>[0-9.]+),"args":\{"sample_seq":(?P<seq>\d+),"query_seq":\d+,'
    r'"sample_idx":(?P<index>\d+),"issue_start_ns":(?P<issued>\d+),"complete_ns":(?P<done>\d+)'
)
KEPT = {
    "Result is": "result",
    "Completed samples per second": "completed_per_s",
    "Samples per second": "completed_per_s",
    "Scheduled samples per second": "scheduled_per_s",
    "Mean latency (ns)": "mean_ns",
    "50.00 percentile latency (ns)": "p50_ns",
    "90.00 percentile latency (ns)": "p90_ns",
    "95.00 percentile latency (ns)": "p95_ns",
    "99.00 percentile latency (ns)": "p99_ns",
    "99.90 percentile latency (ns)": "p999_ns",
    "Max latency (ns)": "max_ns",
    "Performance constraints satisfied": "constraints",
    "Min duration satisfied": "min_duration",
    "Min queries satisfied": "min_queries",
    "Early stopping satisfied": "early_stopping",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a test, in the order of issue."""

    index: int
    scheduled_ns: int
    "on LoadGen's clock"
    issued_ns: int
    "when LoadGen called, relative to scheduled_ns"
    done_ns: int
    "when LoadGen got the answer, relative to scheduled_ns: the latency that it counts"


def samples(folder: Path) -> list[Sample]:
    """Return all samples of a test in order of issue.

    Raises:
        AttnbenchError: the trace is missing or incomplete.
    """
    try:
        with (folder / TRACE).open(encoding="utf-8", errors="replace") as file:
            matches = [match for line in file if '"Sample"' in line and (match := SAMPLE.search(line))]
    except OSError as error:
        raise AttnbenchError(f"load: LoadGen's trace cannot be read ({error.strerror})") from None
    found = sorted(
        (
            (
                int(match["seq"]),
                Sample(int(match["index"]), round(float(match["ts"]) * 1000), int(match["issued"]), int(match["done"])),
            )
            for match in matches
        ),
        key=lambda one: one[0],
    )
    if [seq for seq, _ in found] != list(range(len(found))):
        raise AttnbenchError("load: LoadGen's trace has not every sample once")
    return [sample for _, sample in found]


def summary(folder: Path) -> dict[str, str | float]:
    """Return the values of LoadGen's summary, by short names."""
    try:
        text = (folder / SUMMARY).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found: dict[str, str | float] = {}
    for line in text.splitlines():
        key, colon, value = line.strip().partition(":")
        if colon and (name := KEPT.get(key.strip())):
            value = value.strip()
            found[name] = float(value) if re.fullmatch(r"[0-9.]+(e[+-]?\d+)?", value) else value
    return found
