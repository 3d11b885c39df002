"""How exact the generators are on an idle machine: rate offered against asked, lateness; nothing is computed.

    python benchmarks/load_generator.py [SECONDS]

At least 100 requests of a rate are issued.  One JSON object a line: generator, asked and offered rate, requests,
lateness p50, p99 and maximum in milliseconds.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attnbench.loadtest.gaps import arrivals
from attnbench.loadtest.generator import by_loadgen, own_cores, scheduled
from attnbench.loadtest.issuing.loadgen import SCHEDULE_SEED, Settings
from attnbench.loadtest.loadgen_rate import rate_for_loadgen
from attnbench.loadtest.points import by_schedule, point_of
from attnbench.loadtest.presets import PRESETS
from attnbench.loadtest.run import Indexed, loadgen_schedule
from attnbench.loadtest.serving import Batching, Server
from attnbench.loadtest.users import Policy, kuairand
from attnbench.models.hstu_ranking.request import Request

RATES = (100.0, 500.0, 1000.0, 2000.0)


class Nothing:
    """A batch that is over at once."""

    def done(self) -> bool:
        return True

    def wait(self) -> float | None:
        return None


class NoEngine:
    depth = 1

    def launch(self, requests: Sequence[Request]) -> Nothing:
        return Nothing()


def users():
    config = PRESETS["tiny"].config
    return kuairand(config, users=50, candidates=5, most_items=100, seed=0, policy=Policy(config))


def ours(rate: float, seconds: float):
    due, whose = arrivals(users=50, rate=rate, duration_s=seconds, burstiness=1.0, seed=0)
    with scheduled(due.tolist()) as generator:
        library = Indexed(users(), whose.tolist())
        ledger = Server(generator, NoEngine(), library, Batching(max_batch=1, max_wait_ms=0)).run()
    return point_of(
        ledger,
        by_schedule(ledger, due.tolist(), generator.origin_ns or 0),
        scenario="gaps",
        generator="attnbench",
        asked=rate,
        slos_ms=(1.0,),
        cache={},
    )


def loadgen(rate: float, seconds: float):
    with tempfile.TemporaryDirectory() as folder:
        given, queries = rate_for_loadgen(rate, seconds, SCHEDULE_SEED)
        settings = Settings(
            scenario="Server",
            rate=given,
            duration_ms=int(1000 * seconds) - 1,
            slo_ms=50.0,
            queries=queries,
            samples=50,
            seed=0,
            folder=folder,
        )
        with by_loadgen(settings) as generator:
            ledger = Server(generator, NoEngine(), users(), Batching(max_batch=1, max_wait_ms=0)).run()
        schedule, _ = loadgen_schedule(ledger, generator, Path(folder))
    return point_of(
        ledger, schedule, scenario="server", generator="mlcommons-loadgen", asked=rate, slos_ms=(1.0,), cache={}
    )


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with own_cores():
        for measure, rate in itertools.product((ours, loadgen), RATES):
            point = measure(rate, max(seconds, 100 / rate))
            print(
                json.dumps(
                    {
                        "generator": point.generator,
                        "asked": rate,
                        "offered": round(point.offered_rate, 2),
                        "requests": point.issued,
                        "late_p50_ms": round(point.late.p50, 4),
                        "late_p99_ms": round(point.late.p99, 4),
                        "late_max_ms": round(point.late.max, 4),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
