"""A sweep on one GPU and on two, by either engine; Ray against the local engine; ratios beside a busy neighbour GPU.

    python benchmarks/scale.py OUT sweep [--address HOST:PORT]       two GPUs, with an address also both through Ray
    python benchmarks/scale.py OUT neighbour [--rounds 1,2,3]        two GPUs, the second one loaded
    python benchmarks/scale.py OUT ray --address HOST:PORT [--rounds 1,2]    one GPU: whole runs by either engine
    python benchmarks/scale.py OUT turns --address HOST:PORT         one GPU: each group by both engines, in turn
    python benchmarks/scale.py OUT sweep ray neighbour --address HOST:PORT --dry-run    how long each takes

Every run is added to OUT/scaled.json when it ends: parts and rounds may be measured by commands of their own, in any
session. OUT also has the run files. `scale_tables.py` works out all figures, and prints them for one such file or several.
The cluster of HOST:PORT has this machine alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import scale_tables

from attnbench.machine.device import Device
from attnbench.presentation.gpus import spread_of_gpus
from attnbench.record import PlannedGroup, Run, Settings, to_dict
from attnbench.store.environments import gpu_of
from attnbench.store.runfile import new_id, now
from attnbench.suites.load import load_suite
from attnbench.suites.plan import Request, build
from attnbench.sweep.executor import DeviceExecutor, Executor, Measured, OnProgress
from attnbench.sweep.run import Event, execute

SUITE = """
name = "scale"
title = "short groups of torch's own kernels"
workload = "attention"
backends = ["sdpa-cudnn", "sdpa-flash"]
baseline = "sdpa-flash"
axes = { batch = [1, 2], seqlen = [1024, 1536, 2048, 3072, 4096], nheads = [8, 16], headdim = [64, 128], dtype = ["bf16"] }
settings = { rel_ci = 0.0005, max_seconds = 2.5 }
"""
"""Groups take some three seconds, as those of the shipped suites at least do; workers start in seven."""
RAY_SECONDS = 1.0
"""Of sampling in a group where the engines are compared: shorter than in `SUITE`, so what Ray costs is a larger share."""
BESIDE = 10
"""Groups that are measured beside a busy neighbour."""
WARM_UP = 3
"""Groups of the run before each part and round by each engine, which is not kept: libraries, Ray's too, are read from disk,
and GPUs are warm.  Of 40 groups they have both head dims: the first call of each takes a machine 0.6 s longer."""
TURNS = 11
"""Groups that both engines measure in turn, the first of which starts their workers."""
ROUNDS = {"sweep": 1, "ray": 2, "turns": 1, "neighbour": 3}
START_S, RAY_START_S, OVERHEAD_S = 9.0, 12.0, 0.55
"""What a run takes before its first group by either engine, and a group beside its sampling; measured on two H200."""
BURN = """
import sys, threading, torch
asked = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), asked.set()), daemon=True).start()
a, b, c = (torch.randn(8192, 8192, device="cuda:1", dtype=torch.bfloat16) for _ in range(3))
batches = 0
while not asked.is_set():
    for _ in range(50):
        torch.matmul(a, b, out=c)
    torch.cuda.synchronize(1)
    batches += 1
    if batches == 1:
        print("busy", flush=True)
print(batches, flush=True)
"""
"""Says when it has computed something, computes until its input is closed, and then says how many batches it were."""


@dataclass(frozen=True, slots=True)
class Step:
    """One run of a part."""

    part: str
    round: int
    engine: str = "local"
    "local, ray, or both: each group by one and by the other"
    gpus: int = 1
    beside: bool = False
    "a busy neighbour GPU"
    kept: bool = True
    start: bool = False
    "of one group: how long an engine takes until it has the first one"


def steps(part: str, round_: int, *, ray: bool, local: bool = True) -> list[Step]:
    """The runs of a part in their order, which exposes both sides of a comparison alike to what drifts slowly.

    Args:
        part: of `ROUNDS`.
        round_: the number of the round.
        ray: for a sweep: two GPUs through Ray.
        local: for a sweep: two GPUs by the local engine, and one GPU a second time.
    """
    one, beside = Step(part, round_), Step(part, round_, beside=True)
    warm, through_ray = dataclasses.replace(one, kept=False), dataclasses.replace(one, engine="ray")
    if part == "neighbour":
        return [warm, one, beside, beside, one]
    if part == "ray":
        return [warm, dataclasses.replace(warm, engine="ray"), one, through_ray, through_ray, one]
    if part == "turns":
        starts = [dataclasses.replace(each, start=True) for each in (one, through_ray, through_ray, one)]
        first = [dataclasses.replace(each, kept=False) for each in (one, through_ray)]
        return [*first, *starts, dataclasses.replace(one, engine="both")]
    engines = [one] * local + [through_ray] * ray
    both = [dataclasses.replace(each, gpus=2) for each in engines]
    warm_ups = [dataclasses.replace(each, kept=False) for each in [one, *both[1:]]]
    return [*warm_ups, one, *both, *[one] * local]


def planned(folder: Path, device: Device) -> Run:
    """The plan of the sweep."""
    path = folder / "scale.toml"
    path.write_text(SUITE)
    request = Request(suite=load_suite(str(path), device.kind), device=str(device))
    return build(request, run_id=new_id(), command="python benchmarks/scale.py", started=now())


@dataclass
class Bench:
    """Where and what is measured.

    Args:
        folder: for the run files and `scaled.json`.
        plan: of the sweep.
        devices: the GPU that measures, and its neighbour.
        files: of --backends, for a plan of other backends.
        ray: connects, and returns an executor for each GPU of the cluster; disconnects when the stack closes, after the
            run has its time. None without a cluster.
        burn: program that loads the neighbour.
        local: a sweep on two GPUs also by the local engine.
        warm: the GPUs and what is read from disk are warm already: no warm-up.
    """

    folder: Path
    plan: Run
    devices: Sequence[Device]
    files: tuple[str, ...] = ()
    ray: Callable[[ExitStack], Sequence[Executor]] | None = None
    burn: str = BURN
    local: bool = True
    warm: bool = False
    _lasting: Lasting | None = field(default=None, init=False)

    def measure(self, part: str, round_: int) -> None:
        """Carry out a round of a part; each run is in the file when it has ended."""
        with ExitStack() as closing:
            if part == "neighbour":
                # Of two workers one may have the slower of two times for a kernel: here all runs of a round have one worker.
                self._lasting = Lasting(self.devices[0], self.files)
                closing.callback(self._lasting.end)
            for step in self._steps(part, round_):
                self._carry_out(step)
        self._lasting = None

    def seconds(self, part: str, round_: int) -> float:
        """How long a round of a part takes, by what earlier runs took."""
        return sum(map(self._seconds, self._steps(part, round_)))

    def _steps(self, part: str, round_: int) -> list[Step]:
        found = steps(part, round_, ray=self.ray is not None, local=self.local)
        return [step for step in found if step.kept or not self.warm]

    def _seconds(self, step: Step) -> float:
        plan = self._plan(step)
        start = START_S if step.engine == "local" else RAY_START_S
        if step.part == "neighbour" and step.kept and not step.beside:
            start = 0.0  # the round's worker is there
        turns = len(plan.plan) * (2 if step.engine == "both" else 1)
        return start + turns * (plan.settings.max_seconds + OVERHEAD_S) / step.gpus

    def _plan(self, step: Step) -> Run:
        groups, settings = list(self.plan.plan), self.plan.settings
        if step.part == "neighbour":
            groups = apart(groups, BESIDE)
        if step.part == "ray":
            settings = dataclasses.replace(settings, max_seconds=min(RAY_SECONDS, settings.max_seconds))
        if step.part == "turns":
            # Inspections are drawn at random, and move a group by more than Ray does.
            settings = dataclasses.replace(settings, check=False)
        if not step.kept:
            groups = apart(groups, WARM_UP)
        elif step.part == "turns":
            groups = apart(groups, 1 if step.start else TURNS)
        return dataclasses.replace(self.plan, plan=tuple(groups), settings=settings)

    def _executors(self, step: Step, closing: ExitStack) -> Sequence[Executor]:
        if self._lasting is not None:
            return [self._lasting]
        if step.engine == "local":
            return [DeviceExecutor(device, self.files) for device in self.devices[: step.gpus]]
        assert self.ray is not None
        found = self.ray(closing)
        if len(found) < step.gpus:
            raise SystemExit(f"the cluster has {len(found)} GPUs; {step.gpus} are needed")
        for executor in found[step.gpus :]:
            closing.callback(executor.close)  # which takes a while: after the run
        if step.engine == "both":
            return [InTurn(DeviceExecutor(self.devices[0], self.files), found[0])]
        return found[: step.gpus]

    def _carry_out(self, step: Step) -> None:
        plan, turn = self._plan(step), sum(told["part"] == step.part for told in self._told()["runs"]) + 1
        name = f"{step.part}-{turn}-{step.engine}-{step.gpus}" + "-beside" * step.beside if step.kept else "warm-up"
        ends: list[float] = []
        steps_s: dict[str, float] = {}

        def passed(what: str) -> None:
            steps_s[what] = round(time.perf_counter() - began, 3)

        def hear(event: Event) -> None:
            if event.kind == "start":
                passed("open")
            elif event.kind == "group":
                ends.append(time.perf_counter())
                if len(ends) <= step.gpus:
                    passed(f"group {len(ends)}")

        path = self.folder / f"{name}.json"
        path.unlink(missing_ok=True)
        with ExitStack() as closing:
            load = closing.enter_context(neighbour(self.burn)) if step.beside else None
            began = time.perf_counter()  # with Ray also connecting and sending the code
            executors = self._executors(step, closing)
            passed("executors")
            run = execute(plan, path=path, backend_files=self.files, on_event=hear, executors=executors)
            wall = time.perf_counter() - began
        print(f"{name}: {wall:.1f} s; {', '.join(f'{what} {at:.1f}' for what, at in steps_s.items())}", flush=True)
        if not step.kept:
            return
        told: dict[str, Any] = {
            **dataclasses.asdict(step),
            "groups": len(plan.plan),
            "wall_s": round(wall, 3),
            "first_s": round(ends[0] - began, 3),
            "steps_s": steps_s,
            "steady_s": round(ends[-1] - ends[0], 3),
            "neighbour": load,
            "turns": [turn for each in executors if isinstance(each, InTurn) for turn in each.turns],
            "spread": spread_of_gpus(run),
            "rows": [list(row) for row in rows_of(run)],
        }
        del told["kept"], told["start"]
        self._add(told, to_dict(run.environments))

    def _told(self) -> dict[str, Any]:
        path = self.folder / "scaled.json"
        found: dict[str, Any] = (
            json.loads(path.read_text("utf-8")) if path.exists() else {"environments": [], "runs": []}
        )
        return found

    def _add(self, told: dict[str, Any], environments: Sequence[dict[str, Any]]) -> None:
        everything = self._told()
        everything["environments"] += [one for one in environments if one not in everything["environments"]]
        everything["runs"].append(told)
        draft = self.folder / "scaled.json.draft"
        draft.write_text(scale_tables.text(everything))
        draft.replace(self.folder / "scaled.json")


class Lasting(DeviceExecutor):
    """An executor that several runs have after each other, with one worker."""

    opened = False

    def open(self, on_progress: OnProgress) -> None:
        """Take the GPU for the first run."""
        if not self.opened:
            super().open(on_progress)
            self.opened = True

    def close(self) -> None:
        """Keep worker and GPU for the next run."""

    def end(self) -> None:
        """End the worker, and release the GPU."""
        super().close()


class InTurn:
    """An executor that has each group measured by both engines on one GPU, and keeps how long each took.

    Of two whole runs one may be slower by more than what Ray costs; of the same group twice, one after the other, hardly.

    Args:
        local: measures here; the other one reserves their GPU.
        through_ray: measures through Ray.
    """

    def __init__(self, local: Executor, through_ray: Executor) -> None:
        self.name, self._local, self._through_ray = local.name, local, through_ray
        self.turns: list[tuple[str, float, float]] = []
        "of each group its name, and seconds by the local engine and through Ray"

    def order(self) -> str:
        """Return the order of the one that reserves the GPU."""
        return self._through_ray.order()

    def open(self, on_progress: OnProgress) -> None:
        """Reserve the GPU."""
        self._through_ray.open(on_progress)

    def measure(self, group: PlannedGroup, settings: Settings, on_progress: OnProgress) -> Measured:
        """Measure a group twice; whose turn is first changes every second group."""
        took: dict[Executor, float] = {}
        engines = [self._local, self._through_ray]
        for engine in engines if len(self.turns) % 4 in (0, 3) else reversed(engines):
            began = time.perf_counter()
            measured = engine.measure(group, settings, on_progress)
            took[engine] = time.perf_counter() - began
        self.turns.append((group.group, *(round(took[engine], 4) for engine in engines)))
        return measured

    def interrupt(self, name: str, *, at_once: bool) -> bool:
        """End what is being measured."""
        ended = [each.interrupt(name, at_once=at_once) for each in (self._local, self._through_ray)]
        return any(ended)

    def stop(self) -> None:
        """End what is being measured."""
        self._local.stop()
        self._through_ray.stop()

    def close(self) -> None:
        """End both workers, and release the GPU."""
        self._local.close()
        self._through_ray.close()


@contextmanager
def neighbour(burn: str) -> Iterator[dict[str, Any]]:
    """Load the other GPU: from before the block to after it, or it is an error.

    Yields:
        What the load did: filled in at the end.
    """
    began = time.perf_counter()
    told: dict[str, Any] = {}
    words = [sys.executable, "-c", burn]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as load:
        try:
            assert load.stdout is not None
            if load.stdout.readline() != "busy\n":
                raise RuntimeError(f"the neighbour's load did not begin: it ended with {load.wait()}")
            yield told
            said, _ = load.communicate(timeout=60)  # closes its input
            if not said.strip().isdigit():
                raise RuntimeError(f"the neighbour's load ended with {load.returncode} before the run did")
            told.update(batches=int(said), seconds=round(time.perf_counter() - began, 3))
        finally:
            load.kill()


def apart(groups: Sequence[PlannedGroup], count: int) -> list[PlannedGroup]:
    """Some of the groups, spread over all."""
    return list(groups[:: max(1, len(groups) // count)][:count])


def rows_of(run: Run) -> Iterator[tuple[Any, ...]]:
    """Of each row: group, backend, GPU, status, median in ms, ratio to the baseline."""
    for item in run.records:
        median = item.time.median_ms if item.time else None
        yield item.group, item.backend, gpu_of(run, item), item.status, median, item.speedup and item.speedup.ratio


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", nargs="+", choices=list(ROUNDS))
    parser.add_argument("--rounds", help="some rounds of the parts, such as 1,2, or more than the usual (default: all)")
    parser.add_argument("--address", help="HOST:PORT of a Ray cluster, for `ray`, and for `sweep` through Ray")
    parser.add_argument("--only-ray", action="store_true", help="`sweep` on two GPUs only through Ray")
    parser.add_argument("--warm", action="store_true", help="no warm-up: another part has just run")
    parser.add_argument("--dry-run", action="store_true", help="print how long each round takes")
    args = parser.parse_args(words)
    if args.address is None and (args.only_ray or {"ray", "turns"}.intersection(args.parts)):
        parser.error("--address is missing")
    if args.rounds and not re.fullmatch(r"[1-9][0-9]*(,[1-9][0-9]*)*", args.rounds):
        parser.error(f"--rounds: {args.rounds} is no list of rounds; numbers from 1 on, such as 1,2")
    args.out.mkdir(parents=True, exist_ok=True)
    devices = [Device("cuda", 0), Device("cuda", 1)]

    def through_ray(closing: ExitStack) -> Sequence[Executor]:
        import ray

        from attnbench.sweep.ray_engine import ray_executors

        closing.callback(ray.shutdown)  # each run connects, as a command does
        return ray_executors(args.address, devices[0], [], wait=False)

    plan, ray = planned(args.out, devices[0]), through_ray if args.address else None
    bench = Bench(args.out, plan, devices, ray=ray, local=not args.only_ray, warm=args.warm)
    asked = [int(one) for one in args.rounds.split(",")] if args.rounds else None
    rounds = [(part, one) for part in args.parts for one in asked or range(1, ROUNDS[part] + 1)]
    for part, one in rounds:
        print(f"{part}, round {one}: about {bench.seconds(part, one) / 60:.1f} minutes", flush=True)
        if not args.dry_run:
            bench.measure(part, one)
    total = sum(bench.seconds(part, one) for part, one in rounds)
    print(
        f"together: about {total / 60:.1f} minutes" if args.dry_run else scale_tables.said([args.out / "scaled.json"])
    )


if __name__ == "__main__":
    main()
