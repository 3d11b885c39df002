"""The profiled process, on this machine's CPU: its sessions, warm-up, launches, and answers."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext

import pytest

from attnbench.backends.registry import all_backends
from attnbench.machine import child
from attnbench.profile import job as jobs
from attnbench.profile import target
from attnbench.profile.job import Job
from attnbench.workloads.base import load_workload

COUNTING = """
import torch
from contextlib import contextmanager
from attnbench.backends.base import Backend, Launch
from attnbench.errors import Unsupported

CALLS = []

class Counting(Backend):
    name, workload, variant, install, devices = "counting", "attention", "softmax", "here", ("cpu",)

    @contextmanager
    def session(self, case, inputs):
        CALLS.append("open")
        yield Launch(forward=lambda: CALLS.append("call"), outputs=dict, reload=lambda inputs: None,
                     reset=lambda: CALLS.append("reset"))
        CALLS.append("close")

class Long(Counting):
    name = "long"

    @contextmanager
    def session(self, case, inputs):
        yield Launch(forward=lambda: CALLS.append("call"), outputs=dict, reload=lambda inputs: None,
                     at_length=lambda: CALLS.append("whole"))

class Refusing(Counting):
    name = "refusing"

    def check(self, case, machine):
        raise Unsupported(f"refusing: headdim={case.headdim} is not supported; at most 4")

class Raising(Counting):
    name = "raising"

    @contextmanager
    def session(self, case, inputs):
        yield Launch(forward=lambda: 1 / 0, outputs=dict, reload=lambda inputs: None)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "counting.py"
    path.write_text(COUNTING)
    return str(path)


def make_job(*backends, files=(), marks="none", mode="fwd", **more):
    workload = load_workload("attention")
    case = workload.case({"batch": 1, "seqlen": 32, "nheads": 2, "headdim": 16, "dtype": "fp32", "mode": mode})
    return Job(
        workload="attention",
        case=case.to_dict(),
        case_id=case.id,
        backends=backends,
        files=tuple(files),
        device="cpu",
        marks=marks,
        **more,
    )


def test_warm_ups_stand_before_the_window_and_resets_before_each_range(tmp_path, file, monkeypatch):
    calls = type(all_backends([file])["counting"]).session.__wrapped__.__globals__["CALLS"]
    seen = []

    def mark(name):
        seen.append((len(calls), name))
        return nullcontext()

    monkeypatch.setattr(target, "_window", lambda job, trace: nullcontext(mark))
    job = make_job("counting", files=[file], warmup=2, launches=3)
    assert target.carry_out(job, tmp_path / "trace.json").reasons == {}
    assert calls == ["open", *["reset", "call"] * 2, *["reset", "call"] * 3, "close"]
    assert seen == [(count, f"counting/{job.case_id}") for count in (6, 8, 10)]


def test_of_a_whole_generation_one_is_warmed_up_as_well(tmp_path, file, monkeypatch):
    calls = type(all_backends([file])["long"]).session.__wrapped__.__globals__["CALLS"]
    at = []
    monkeypatch.setattr(
        target, "_window", lambda job, trace: nullcontext(lambda name: at.append(len(calls)) or nullcontext())
    )
    job = make_job("long", "counting", files=[file], warmup=1, whole=True)
    reasons = target.carry_out(job, tmp_path / "trace.json").reasons
    assert [call for call in calls if call not in ("open", "reset", "close")] == ["call", "whole", "call", "whole"]
    assert at == [calls.index("whole", 2)]
    assert list(reasons) == ["counting"]
    assert "nothing that follows its launches" in reasons["counting"]


def test_a_launch_marks_its_own_parts(tmp_path):
    """Of a ranking step: each phase, in the order of the step, and only inside the window."""
    workload = load_workload("hstu-serving")
    case = workload.case(
        {
            "model": "tiny",
            "batch": 1,
            "num_candidates": 2,
            "cached": 32,
            "new_tokens": 2,
            "dtype": "fp32",
            "page_size": 32,
        }
    )
    given = Job(
        workload="hstu-serving",
        case=case.to_dict(),
        case_id=case.id,
        backends=("serving-eager",),
        files=(),
        device="cpu",
        input="normal",
        seed=0,
        warmup=1,
        launches=1,
        marks="torch",
    )
    trace = tmp_path / "trace.json"
    assert target.carry_out(given, trace).reasons == {}
    events = [one for one in json.loads(trace.read_text())["traceEvents"] if one.get("cat") == "user_annotation"]
    names = [one["name"] for one in sorted(events, key=lambda one: one["ts"])]
    layer = ["projection", "append", "attention", "output"]
    before = ["KV_Cache_Preprocessing", "requests", "allocate", "strip"]
    inside = ["Embedding", "embedding", "GR_forward", *layer, *layer, "head"]
    assert names == [f"serving-eager/{case.id}", *before, *inside]


def test_a_backend_that_fails_leaves_the_others(tmp_path, file):
    job = make_job("refusing", "raising", "counting", "no-such", "sdpa-cudnn", files=[file])
    reasons = target.carry_out(job, tmp_path / "trace.json").reasons
    assert set(reasons) == {"refusing", "raising", "no-such", "sdpa-cudnn"}
    assert reasons["refusing"] == "refusing: headdim=16 is not supported; at most 4"
    assert "division by zero" in reasons["raising"]
    assert "device=cpu is not supported; cuda" in reasons["sdpa-cudnn"]


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd-bwd"])
def test_every_mode_of_a_real_backend(tmp_path, mode):
    assert target.carry_out(make_job("eager", mode=mode), tmp_path / "trace.json").reasons == {}


def test_torch_profilers_trace_has_our_ranges_and_no_path(tmp_path):
    trace = tmp_path / "x.trace.json"
    job = make_job("eager", marks="torch", launches=2)
    answer = target.carry_out(job, trace)
    data = json.loads(trace.read_text())
    ours = [one for one in data["traceEvents"] if one.get("cat") == "user_annotation"]
    assert [one["name"] for one in ours if "/" in one["name"]] == [f"eager/{job.case_id}"] * 2
    assert data["attnbench"] == {"torch": answer.torch}
    assert str(tmp_path) not in trace.read_text()


def test_as_a_process_of_its_own(tmp_path, file):
    paths = [tmp_path / name for name in ("job.json", "answer.json", "trace.json")]
    jobs.write(make_job("counting", "raising", files=[file]), paths[0])
    argv = child.command("attnbench.profile.target", *map(str, paths))
    done = subprocess.run(argv, env=child.environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    answer = jobs.read_answer(paths[1])
    assert list(answer.reasons) == ["raising"]
    jobs.write(make_job("raising", files=[file]), paths[0])
    assert target.main(*map(str, paths)) == target.NOTHING_RAN


def test_an_answer_that_never_came(tmp_path):
    assert jobs.read_answer(tmp_path / "answer.json") is None
    (tmp_path / "answer.json").write_text('{"reasons": {')
    assert jobs.read_answer(tmp_path / "answer.json") is None


def test_names_of_files():
    assert jobs.file_name(["sdpa-flash"]) == "profile_sdpa-flash"
    assert jobs.file_name(["flex[bm64/bn32]"], "b1-fwd") == "profile_flex_bm64_bn32_b1-fwd"
