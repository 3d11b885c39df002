"""MLPerf's LoadGen as the generator: `python -m attnbench.loadtest.issuing.loadgen OUT ANSWERS`, the settings on stdin.

stdin: a JSON object, see `Settings`.  LoadGen decides which sample is issued when, and counts latency from the
scheduled time.  It writes its files into a folder, including the trace, which contains the schedule.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from attnbench.loadtest.issuing.wire import END, ISSUED, NUMBER, START, pack, write

READ = 1 << 16
SCHEDULE_SEED = 2
"Its seeds are the given one and the following ones; this one is that of the gaps."


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Parameters of a LoadGen test."""

    scenario: str
    "Server or Offline"
    rate: float
    "requests per second; for Offline the expected rate, which determines the number of requests"
    duration_ms: int
    slo_ms: float
    queries: int = 1
    "least number of queries"
    samples: int
    "in the library"
    seed: int
    folder: str


def settings_of(given: Settings) -> Any:
    """Return LoadGen's own settings."""
    import mlperf_loadgen as lg

    found = lg.TestSettings()
    found.scenario = getattr(lg.TestScenario, given.scenario)
    found.mode = lg.TestMode.PerformanceOnly
    found.min_duration_ms, found.min_query_count = given.duration_ms, given.queries
    found.server_target_qps = found.offline_expected_qps = given.rate
    found.server_target_latency_ns = round(given.slo_ms * 1e6)
    found.server_target_latency_percentile = 0.99
    found.qsl_rng_seed, found.sample_index_rng_seed = given.seed, given.seed + 1
    found.schedule_rng_seed = given.seed + SCHEDULE_SEED
    return found


def logs_of(folder: str) -> Any:
    """Return log settings for files in a folder, without terminal output."""
    import mlperf_loadgen as lg

    found = lg.LogSettings()
    found.log_output.outdir = folder
    found.log_output.copy_summary_to_stdout = False
    found.enable_trace = True
    return found


def run(out: int, answers: int, given: Settings) -> None:
    """Run one test.

    Args:
        out: file descriptor of the pipe to the server.
        answers: file descriptor of the pipe from the server.
        given: the settings.
    """
    import mlperf_loadgen as lg

    def issue(samples: Any) -> None:
        now = time.monotonic_ns()
        write(out, pack((sample.id, sample.index, now) for sample in samples))

    def flush() -> None:
        write(out, pack([(ISSUED, 0, time.monotonic_ns())]))

    def answered() -> None:
        rest = b""
        while data := os.read(answers, READ):
            data = rest + data
            whole = len(data) - len(data) % NUMBER.size
            rest = data[whole:]
            lg.QuerySamplesComplete(
                [lg.QuerySampleResponse(number, 0, 0) for (number,) in NUMBER.iter_unpack(data[:whole])]
            )
        os._exit(1)  # the server is gone, and LoadGen would wait for its answers forever

    threading.Thread(target=answered, daemon=True).start()
    sut = lg.ConstructSUT(issue, flush)
    library = lg.ConstructQSL(given.samples, given.samples, lambda _: None, lambda _: None)
    gc.disable()
    write(out, pack([(START, 0, time.monotonic_ns())]))
    lg.StartTestWithLogSettings(sut, library, settings_of(given), logs_of(given.folder), "")
    write(out, pack([(END, 0, time.monotonic_ns())]))
    os._exit(0)


def main() -> None:
    """Read the settings and run."""
    run(int(sys.argv[1]), int(sys.argv[2]), Settings(**json.loads(sys.stdin.read())))


if __name__ == "__main__":
    main()
