"""A plan's kernels compiled in advance: each group waits for its own, and none is compiled during sampling."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from small_runs import small_run

from attnbench.backends.base import Backend
from attnbench.machine.device import Device
from attnbench.record import PlannedGroup
from attnbench.suites.user_backends import known_backends
from attnbench.sweep import ahead as sweep_ahead
from attnbench.sweep import run as sweep_run
from attnbench.sweep.ahead import CompiledAhead, groups_ahead
from attnbench.sweep.executor import DeviceExecutor
from attnbench.sweep.run import execute
from attnbench.worker.process import Worker
from attnbench.workloads.base import load_workload
from waiting import until

H200 = ((9, 0), 132)
CUDA = Device("cuda", 0)


def group(name: str, *backends: str, workload: str = "attention", **shape: Any) -> PlannedGroup:
    case = load_workload(workload).case({"seqlen": 64, "nheads": 2, "headdim": 16, "dtype": "bf16", **shape})
    return PlannedGroup(group=name, workload=workload, case=case.to_dict(), case_id=name, backends=backends)


# ── a process that compiles when a file says so ────────────────────────────────────────────────────

COMPILER = """
import json, os, sys, time
room, request = sys.argv[1], json.load(sys.stdin)
json.dump(request, open(f"{room}/request", "w"))
open(f"{room}/pid", "w").write(str(os.getpid()))
print("a library greets", flush=True)
for group in request["groups"]:
    name = group["group"]
    print(json.dumps({"group": name, "kernels": 1}), flush=True)
    while not os.path.exists(f"{room}/{name}"):
        time.sleep(0.005)
    if name == "dies":
        sys.exit(1)
    print(json.dumps({"done": name}), flush=True)
"""


class Compiler:
    """The process in a test's folder."""

    def __init__(self, room: Path) -> None:
        self.room = room

    def finish(self, name: str) -> None:
        """Let it compile a group's kernel."""
        (self.room / name).touch()

    @property
    def state(self) -> str:
        """Of the process, as /proc says: T is stopped."""
        pid = until(lambda: (self.room / "pid").exists() and (self.room / "pid").read_text())
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except FileNotFoundError:
            return "gone"

    @property
    def request(self) -> dict[str, Any]:
        """What it was asked."""
        return json.loads((self.room / "request").read_text())


@pytest.fixture
def compiler(tmp_path, monkeypatch) -> Compiler:
    monkeypatch.setattr(sweep_ahead.child, "command", lambda module: [sys.executable, "-c", COMPILER, str(tmp_path)])
    return Compiler(tmp_path)


GROUPS = [group("first", "flash-triton"), group("second", "flash-triton", seqlen=128)]


def test_a_group_waits_for_its_kernels_alone_and_nothing_is_compiled_while_it_is_timed(compiler):
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if text == "compiling 1 kernel, 0 done":
            compiler.finish("first")

    with CompiledAhead(GROUPS, CUDA, (), jobs=3, card=H200) as ahead:
        ahead.wait_for(GROUPS[0], tell)
        until(lambda: compiler.state == "T")
        assert "compiling 1 kernel, 0 done" in told
        compiler.finish("second")
        ahead.wait_for(GROUPS[1], told.append)
        assert (ahead.kernels, ahead.done) == (2, 2)
        assert compiler.request["jobs"] == 3
        assert [one["group"] for one in compiler.request["groups"]] == ["first", "second"]
        assert compiler.request["device"] == "cuda:0"
    assert compiler.state in ("gone", "Z")


def test_one_that_was_left_stopped_is_woken_again(compiler):
    stopped: list[str] = []

    def tell(text: str) -> None:
        if not stopped and compiler.state:
            os.kill(int((compiler.room / "pid").read_text()), signal.SIGSTOP)
            stopped.append(text)
            compiler.finish("first")

    with CompiledAhead(GROUPS, CUDA, (), jobs=1, card=H200) as ahead:
        ahead.wait_for(GROUPS[0], tell)
        assert ahead.done == 1


def test_a_group_that_needs_no_kernel_is_timed_with_nothing_beside_it(compiler):
    with CompiledAhead(GROUPS, CUDA, (), jobs=1, card=H200) as ahead:
        until(lambda: ahead.kernels == 1)
        ahead.wait_for(group("other", "sdpa"))
        until(lambda: compiler.state == "T")
        compiler.finish("first")
        assert (ahead.done, compiler.state) == (0, "T")


def test_what_is_only_checked_is_compiled_meanwhile(compiler):
    compiler.finish("first")
    with CompiledAhead(GROUPS, CUDA, (), jobs=1, sampled=False, card=H200) as ahead:
        ahead.wait_for(GROUPS[0])
        assert compiler.state != "T"
        compiler.finish("second")
        until(lambda: ahead.done == 2)


def test_of_several_executors_each_waits_for_all(compiler):
    compiler.finish("first")

    def tell(text: str) -> None:
        if text == "compiling 2 kernels, 1 done":
            compiler.finish("second")

    with CompiledAhead(GROUPS, CUDA, (), jobs=1, together=True, card=H200) as ahead:
        ahead.wait_for(GROUPS[0], tell)
        assert ahead.done == 2


def test_replicates_need_the_same_kernels(compiler):
    again = dataclasses.replace(GROUPS[0], group="first again", replicate=1)
    compiler.finish("first")
    with CompiledAhead([GROUPS[0], again], CUDA, (), jobs=1, card=H200) as ahead:
        ahead.wait_for(GROUPS[0])
        ahead.wait_for(again)
        assert [one["group"] for one in compiler.request["groups"]] == ["first"]


def test_a_process_that_dies_leaves_the_rest_to_the_workers(compiler):
    groups = [group("dies", "flash-triton"), GROUPS[1]]
    compiler.finish("dies")
    with CompiledAhead(groups, CUDA, (), jobs=1, card=H200) as ahead:
        for one in groups:
            ahead.wait_for(one)
        assert ahead.done == 0


def test_one_that_says_nothing_more_is_not_waited_for_for_ever(compiler, monkeypatch):
    monkeypatch.setattr(sweep_ahead, "PATIENCE_S", 0.0)
    with CompiledAhead(GROUPS, CUDA, (), jobs=1, card=H200) as ahead:
        ahead.wait_for(GROUPS[0])
        until(lambda: compiler.state in ("gone", "Z"))


def test_who_waits_hears_that_the_run_is_stopped(compiler):
    executor = DeviceExecutor(CUDA)
    waiting = threading.Event()
    with CompiledAhead(GROUPS, CUDA, (), jobs=1, card=H200) as ahead:
        executor.ahead = ahead
        thread = threading.Thread(target=ahead.wait_for, args=(GROUPS[0], lambda text: waiting.set()))
        thread.start()
        assert waiting.wait(60)
        executor.stop()
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("kept", [None, "here"])
def test_worker_and_compilers_have_one_cache_whatever_torch_compiles(kept, monkeypatch, tmp_path):
    """Without TRITON_CACHE_DIR torch's compiler sets one in its process, where nothing would be found."""
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    if kept is not None:
        monkeypatch.setenv("TRITON_CACHE_DIR", kept)
    found: list[str] = []

    class Started(Exception):
        pass

    def start(command: Any, *, env: dict[str, str], **given: Any) -> None:
        found.append(env["TRITON_CACHE_DIR"])
        raise Started

    monkeypatch.setattr("subprocess.Popen", start)
    for begin in (lambda: CompiledAhead(GROUPS, CUDA, (), jobs=1, card=H200), lambda: Worker(CUDA)):
        with pytest.raises(Started):
            begin()
    assert found == [kept or str(tmp_path / ".triton" / "cache")] * 2


@pytest.mark.parametrize(
    ("cores", "memory", "jobs"),
    [(16, 64 << 30, 16), (16, 3 << 30, 3), (16, 1 << 20, 1), (500, None, 64), (None, None, 1)],
)
def test_as_many_processes_as_cores_and_memory_allow(cores, memory, jobs, monkeypatch):
    monkeypatch.setattr(sweep_ahead, "usable_cores", lambda: cores)
    monkeypatch.setattr(sweep_ahead, "available_memory", lambda: memory)
    assert sweep_ahead.default_jobs() == jobs


# ── the process itself ─────────────────────────────────────────────────────────────────────────────


def test_the_process_compiles_what_sessions_need_once(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    groups = [
        group("one", "sdpa", "flash-triton", "flash-triton[m64n32w4s2]"),
        group("no such case", "flash-triton", headdim=999),
        group("the same kernels", "flash-triton", batch=2),
    ]
    with CompiledAhead(groups, CUDA, (), jobs=2, card=((8, 0), 108)) as ahead:
        for one in groups:
            ahead.wait_for(one)
        found = ahead.kernels, ahead.done
    compiled = list(tmp_path.rglob("*.cubin"))
    assert found == (len(compiled), len(compiled))
    assert 1 <= len(compiled) <= 2


# ── a run ──────────────────────────────────────────────────────────────────────────────────────────


def test_only_what_needs_no_card_is_compiled_ahead(monkeypatch):
    pytest.importorskip("triton")
    plan = [group("both", "sdpa", "flash-triton", "flash-triton[m64n32w4s2]", "flex"), group("none", "sdpa")]
    assert [(one.group, one.backends) for one in groups_ahead(plan, ())] == [
        ("both", ("flash-triton", "flash-triton[m64n32w4s2]"))
    ]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert groups_ahead(plan, ()) == []


def test_shipped_backends_that_are_compiled_ahead():
    able = {name for name, backend in known_backends(()).items() if backend.ahead}
    assert able == {
        "flash-triton",
        "flash-quant",
        "flash-sparse",
        "flash-sparse-quant",
        "hstu-triton",
        "hstu-bsa-triton",
        "serving-paged",
        "serving-gathered",
    }
    assert Backend.ahead is False


class Ahead:
    """Stands for `CompiledAhead`: notes what it is asked."""

    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, groups: list[PlannedGroup], device: Device, files: tuple[str, ...], **given: Any) -> None:
        self.news = {"groups": [one.group for one in groups], "device": str(device), **given, "waited": []}
        self.made.append(self.news)

    @contextmanager
    def _open(self) -> Iterator[Ahead]:
        yield self
        self.news["closed"] = True

    def __enter__(self) -> Ahead:
        self.closing = self._open()
        return self.closing.__enter__()

    def __exit__(self, *how: Any) -> None:
        self.closing.__exit__(*how)

    def wait_for(self, one: PlannedGroup, tell: Any) -> None:
        tell("compiling 3 kernels, 1 done")
        self.news["waited"].append(one.group)


@pytest.fixture
def noted(monkeypatch):
    """What a run on GPUs asks of `CompiledAhead`, and the order in which it measures."""
    monkeypatch.setattr(Ahead, "made", [])
    monkeypatch.setattr(sweep_run, "CompiledAhead", Ahead)
    monkeypatch.setattr(sweep_run, "groups_ahead", lambda groups, files: list(groups))
    monkeypatch.setattr(DeviceExecutor, "open", lambda executor, on_progress: None)
    monkeypatch.setattr(DeviceExecutor, "order", lambda executor: executor.name)
    monkeypatch.setattr("attnbench.sweep.device_worker.DeviceWorker.begin", lambda worker: None)

    class Measurement:
        def __init__(self, worker: Any, one: PlannedGroup, settings: Any, failures: Any) -> None:
            self.one = one

        def records(self) -> tuple[Any, ...]:
            for news in Ahead.made:
                news["waited"].append(f"measured {self.one.group}")
            return ()

    monkeypatch.setattr("attnbench.sweep.executor.GroupMeasurement", Measurement)
    return Ahead.made


def test_a_run_waits_before_each_group_and_ends_the_process(noted):
    plan = small_run(["reference"], ["reference"], device="cuda:0", baseline="reference")
    texts: list[str] = []
    execute(plan, on_event=lambda event: texts.append(event.text), jobs=5)
    (news,) = noted
    names = [one.group for one in plan.plan]
    assert news["groups"] == names
    assert (news["jobs"], news["together"], news["sampled"], news["device"]) == (5, False, True, "cuda:0")
    assert news["waited"] == [word for name in names for word in (name, f"measured {name}")]
    assert news["closed"]
    assert "compiling 3 kernels, 1 done" in texts


def test_of_a_run_that_is_resumed_only_what_is_left_is_compiled(noted, monkeypatch):
    plan = small_run(["reference"], ["reference"], device="cuda:0", baseline="reference")
    done = SimpleNamespace(group=plan.plan[0].group, backend="reference")
    kept = [group.group for group in plan.plan[1:]]
    monkeypatch.setattr(
        sweep_run.Execution, "_left", lambda execution: [one for one in plan.plan if one.group != done.group]
    )
    execute(plan, jobs=2)
    assert noted[0]["groups"] == kept


def test_checks_alone_are_compiled_for_in_the_background(noted):
    execute(small_run(["reference"], device="cuda:0", baseline="reference", measure=False), jobs=1)
    assert not noted[0]["sampled"]


def test_several_gpus_wait_together(noted):
    plan = small_run(["reference"], ["reference"], device="cuda:0", baseline="reference")
    execute(plan, executors=[DeviceExecutor(Device("cuda", index)) for index in (0, 1)], jobs=1)
    assert noted[0]["together"]


@pytest.mark.parametrize(("device", "jobs"), [("cpu", 4), ("cuda:0", 0)])
def test_nothing_is_compiled_ahead_of_a_cpu_or_where_it_is_switched_off(noted, device, jobs):
    execute(small_run(["reference"], device=device, baseline="reference"), jobs=jobs)
    assert noted == []
