"""What offloading costs the steps that run beside it: HSTU ranking steps with and without copies to host memory.

Two caches of one model serve the same series: `--visits` steps of the same users, whose histories grow by
`--new-tokens` each.  One cache has host memory for all pages, so each step's new tokens are copied out while the next
step runs; the other has none.  The series alternate in one process, in balanced random order.  A step is timed from its
requests until its logits are there, which includes what the host does for the copies.  The first step of a series runs
beside no copy and does not count.

The cost is the ratio of a round's steps with and without, paired by round, with a 95 % interval.  All samples are in the
file, with the number of steps that began while a copy was running.

    python benchmarks/serving_offload.py --out benchmarks/results/serving-offload-h200.json
    python benchmarks/serving_offload.py --device cpu --model tiny --rows 1x8 --cached 32 --new-tokens 16 --visits 3 \\
      --rounds 6 --out /tmp/serving-offload.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from attnbench.machine.devices import resolve
from attnbench.machine.fingerprint import environment
from attnbench.record import to_dict
from attnbench.stats.design import balanced_orders
from attnbench.stats.ratio import paired_ratio

WITH, WITHOUT = "offload", "no offload"
BAR = 0.05
"The issue's: offloading costs concurrent steps at most this share."
WARM_UP = 2
"Series of each way before the first round: kernels are compiled and graphs captured there."


class Server:
    """A cache, and steps over it."""

    def __init__(self, inputs: Any, *, host_pages: int) -> None:
        """Fill the cache with what the first step is to find."""
        from attnbench.models.hstu_ranking.graphs import StepGraphs

        case, model = inputs.case, inputs.model
        self.case, self.users, self.steps, self.device = case, inputs.users, inputs.steps(), model.device
        self.cache = model.make_cache(pages=case.needed_pages, page_size=case.page_size, host_pages=host_pages)
        self.attention = "paged" if model.device.type == "cuda" else "reference"
        self.score: Callable[..., Any] = StepGraphs(model, cache=self.cache, attention=self.attention)
        if case.found:
            model(inputs.before(), cache=self.cache, attention=self.attention)
        self.logits: list[Any] = []
        self.beside = 0
        "steps that began while a copy was running"

    def series(self) -> list[float]:
        """Time of each step, in ms, from the state before the first one."""
        self.cache.settle()
        for user in self.users:
            self.cache.truncate(user, self.case.found)
        self.logits, times = [], []
        for requests in self.steps:
            self.beside += bool(self.cache.pending)
            begun = time.perf_counter()
            logits = self.score(requests)
            self._wait()
            times.append(1e3 * (time.perf_counter() - begun))
            self.logits.append(logits.clone())
        return times

    def _wait(self) -> None:
        """Wait for the logits, not for copies on other streams."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.current_stream(self.device).synchronize()


def measured(values: Mapping[str, Any], device: str, rounds: int) -> dict[str, Any]:
    """Alternate both ways.

    Returns:
        For each way [rounds][visits] times in ms, and what was copied.

    Raises:
        RuntimeError: nothing was copied, or the two ways have other logits.
    """
    import torch

    from attnbench.workloads.base import load_workload
    from attnbench.workloads.hstu_serving.inputs import make_inputs

    case = load_workload("hstu-serving").case({**values, "cache": "growth"})
    inputs = make_inputs(case, seed=0, kind="normal", device=device)
    servers = {way: Server(inputs, host_pages=case.needed_pages * (way == WITH)) for way in (WITHOUT, WITH)}
    for server in servers.values():
        for _ in range(WARM_UP):
            server.series()
        server.cache.settle()
        server.beside = 0
    before = servers[WITH].cache.counts.offloaded
    samples: dict[str, list[list[float]]] = {way: [] for way in servers}
    for order in balanced_orders(len(servers), rounds, 0):
        for way in (list(servers)[place] for place in order):
            samples[way].append(servers[way].series())
    copied = servers[WITH].cache.counts.offloaded - before
    if not copied:
        raise RuntimeError("nothing was copied to host memory")
    for one, other in zip(*(server.logits for server in servers.values()), strict=True):
        if not torch.allclose(one.float(), other.float(), rtol=0.02, atol=0.02):
            raise RuntimeError("the logits with offloading are not those without")
    return {
        "case": case.to_dict(),
        "samples_ms": samples,
        "offloaded_tokens": copied,
        "steps_beside_a_copy": servers[WITH].beside,
    }


def cost_of(samples: Mapping[str, Sequence[Sequence[float]]]) -> tuple[float, float | None, float | None]:
    """How much longer steps take beside a copy, as a share, and its 95 % interval (None: fewer than six rounds)."""
    rounds = {way: {place: sum(times[1:]) for place, times in enumerate(of_way)} for way, of_way in samples.items()}
    found = paired_ratio(rounds[WITHOUT], rounds[WITH])
    low, high = (None if end is None else 1 / end - 1 for end in (found.ci_high, found.ci_low))
    return 1 / found.ratio - 1, low, high


def line(row: Mapping[str, Any]) -> str:
    """What came of a row, and whether the bar is reached: only an interval on one side of it decides that."""
    case, samples = row["case"], row["samples_ms"]
    cost, low, high = cost_of(samples)
    p50 = {way: median(ms for times in of_way for ms in times[1:]) for way, of_way in samples.items()}
    word = "not decided" if low is None or high is None or low <= BAR < high else "reached" if high <= BAR else "MISSED"
    between = "" if low is None or high is None else f" ({100 * low:+.1f} to {100 * high:+.1f} %)"
    steps = len(samples[WITH]) * (len(samples[WITH][0]) - 1)
    return (
        f"{case['batch']}x{case['num_candidates']}: p50 {p50[WITHOUT]:.3f} ms, with offload {p50[WITH]:.3f} ms; "
        f"cost {100 * cost:+.1f} %{between}; {row['steps_beside_a_copy']} of {steps} steps began beside a copy; "
        f"bar {100 * BAR:g} %: {word}"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default="1x128,8x1024", help="users x candidates of the steps")
    parser.add_argument("--model", default="bench")
    parser.add_argument("--cached", type=int, default=4096, help="tokens of each history before the series")
    parser.add_argument("--new-tokens", type=int, default=256, help="tokens that each step adds, and copies out")
    parser.add_argument("--visits", type=int, default=9, help="steps of a series")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(words)
    if args.visits < 2 or args.rounds < 1:
        parser.error("--visits is at least 2, --rounds at least 1")
    device = resolve(args.device)
    values = {
        "model": args.model,
        "cached": args.cached,
        "new_tokens": args.new_tokens,
        "visits": args.visits,
        "dtype": "bf16" if device.on_gpu else "fp32",
    }
    rows = []
    for text in args.rows.split(","):
        batch, candidates = map(int, text.split("x"))
        row = measured({**values, "batch": batch, "num_candidates": candidates}, str(device), args.rounds)
        print(line(row), flush=True)
        rows.append(row)
    args.out.write_text(json.dumps({"environment": to_dict(environment(device)), "rows": rows}) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
