"""LoadGen's files read: the schedule and the latency of each sample from its trace, its own summary in words."""

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
    "after that, when LoadGen called"
    done_ns: int
    "after that, when it was told: the latency that LoadGen counts"


def samples(folder: Path) -> list[Sample]:
    """All samples of a test in the order in which they were issued.

    Raises:
        AttnbenchError: the trace is not there or has not all of them.
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
    """What LoadGen's summary says, by short names."""
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
