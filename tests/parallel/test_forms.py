"""The forms on 2 and 4 processes joined by gloo, against the workloads' oracles on the whole tensors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from parallel_problems import close, inputs_of, problem_of, truth

from attnbench.backends.registry import resolve
from attnbench.errors import Crashed
from attnbench.machine import child
from attnbench.machine.device import CPU
from attnbench.parallel.problem import FUNCTIONS, HSTU, SOFTMAX, Problem
from attnbench.parallel.team import Session, Team, return_team, take_team
from attnbench.workloads.attention_cp import WORKLOAD
from waiting import alive, gone, until

LENGTHS = [(64,), (1,), (3,), (127,), (129,), (1000,), (0, 7, 0), (300, 41, 0, 1, 63), (50, 50, 50)]
"Odd and empty ones, under 2 W rows, cut and dealt whole."
FORMS = ("allgather", "ring", "ulysses")


@pytest.fixture(scope="module", params=[2, 4])
def team(request):
    one = Team("test", [CPU] * request.param)
    yield one
    one.end()


def computed(team: Team, form: str, problem: Problem, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    session = Session(team, form, problem)
    try:
        session.load(tensors)
        assert session.run() > 0
        return session.out().clone()
    finally:
        session.close()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_what_one_oracle_gives_on_the_whole(team, form, function, causal):
    for lengths in LENGTHS:
        problem = problem_of(lengths, causal=causal, function=function)
        tensors = inputs_of(problem)
        assert close(computed(team, form, problem, tensors), truth(problem, tensors)), lengths


def test_the_one_device_that_all_are_compared_with_gives_the_same():
    alone = Team("test", [CPU])
    try:
        for causal, function in product((False, True), (SOFTMAX, HSTU)):
            problem = problem_of((63, 0, 129), causal=causal, function=function)
            tensors = inputs_of(problem)
            assert close(computed(alone, "one", problem, tensors), truth(problem, tensors))
    finally:
        alone.end()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_partial_outputs_of_hstu_are_added_in_fp32_and_rounded_once(team, dtype):
    problem = replace(problem_of((200, 9), causal=True, function=HSTU), dtype=dtype)
    narrow = getattr(torch, dtype)
    tensors = {name: x.to(narrow) for name, x in inputs_of(problem).items()}
    wanted = truth(problem, {name: x.float() for name, x in tensors.items()})
    found = computed(team, "ring", problem, tensors)
    half = torch.finfo(narrow).eps / 2
    assert ((found.double() - wanted).abs() <= 1.01 * half * wanted.abs() + 1e-6).all()


@pytest.mark.parametrize("form", ["allgather", "ring"])
def test_few_key_heads_and_half_precision_go_along(team, form):
    problem = replace(problem_of((200,), causal=True, heads_kv=1), dtype="bfloat16")
    tensors = {name: x.bfloat16() for name, x in inputs_of(problem).items()}
    wanted = truth(problem, {name: x.float() for name, x in tensors.items()})
    assert (computed(team, form, problem, tensors).double() - wanted).abs().max() < 0.02


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_new_values_give_new_results_and_phases_can_be_timed_apart(team, form, function):
    problem = problem_of((100, 31), causal=True, function=function)
    session = Session(team, form, problem)
    try:
        for seed in (1, 2):
            tensors = inputs_of(problem, seed)
            session.load(tensors)
            for _ in range(2):  # the second call finds the same inputs
                session.run()
                assert close(session.out(), truth(problem, tensors))
        assert {"exchange", "attention"} <= set(session.phases)
        assert all(session.run(phase) > 0 for phase in session.phases)
        assert session.sent_bytes > 0
    finally:
        session.close()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_are_spoiled_when_they_were_read_so_that_a_call_has_to_write_them_again(team, function):
    problem = problem_of((64,), causal=True, function=function)
    session = Session(team, "ring", problem)
    try:
        session.load(inputs_of(problem))
        session.dirty = True  # nothing was computed since the inputs came
        assert session.out().isnan().all()
    finally:
        session.close()


def test_what_is_sent_is_what_is_seen_by_others(team):
    """Of the zigzag ring under a mask: the first chunk to later ranks, both to earlier ones."""
    world, rows, item = len(team.devices), 64, 4
    problem = problem_of((8 * rows,), causal=True)
    chunk = 8 * rows // (2 * world) * 2 * problem.heads_kv * problem.dim * item
    sent = {}
    for form in ("ring", "allgather"):
        session = Session(team, form, problem)
        sent[form] = session.sent_bytes
        session.close()
    assert sent["allgather"] == 2 * chunk * (world - 1)
    assert sent["ring"] == 2 * chunk * (world - 1)  # of the last rank, which all earlier ones read


def test_a_team_serves_the_next_session_of_its_owner_and_not_one_that_has_ended():
    first = take_team("test", [CPU])
    problem = problem_of((9,), causal=True)
    session = Session(first, "one", problem)
    session.close()
    return_team(first)
    again = take_team("test", [CPU])
    assert again is first
    tensors = inputs_of(problem)
    assert close(computed(again, "ulysses", problem, tensors), truth(problem, tensors))
    again.end()
    return_team(again)
    other = take_team("test", [CPU])
    assert other is not first
    other.end()


def test_a_team_is_started_before_its_session_and_once():
    backend, case = resolve("cp-ring", None), WORKLOAD.case({"world": 2})
    for _ in range(2):
        backend.prestart(case, torch.device("cpu"))
    started = take_team("cp-ring", [CPU] * 2)
    other = take_team("cp-ring", [CPU] * 2)
    assert other is not started, "one was started, by the first of two calls"
    for team in (started, other):
        team.end()


def test_a_form_that_raises_ends_its_team_and_says_which_rank():
    both = Team("test", [CPU] * 2)
    problem = problem_of((64,), causal=True, heads_kv=16)  # more than heads, which no case has
    session = Session(both, "ring", problem)
    session.load(inputs_of(problem))
    with pytest.raises(RuntimeError, match=r"rank [01] of 2 on cpu: RuntimeError"):
        session.run()
    assert both.ended
    session.close()


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        (lambda process: process.kill(), r"crashed \(SIGKILL\)"),
        (lambda process: process.stdin.close(), "ended with code 0"),
    ],
    ids=["killed", "ended"],
)
def test_a_rank_that_ended_is_named_where_another_says_first_that_it_lost_it(ends, how):
    both = Team("test", [CPU] * 2)
    first, second = both._ranks
    ends(second._process)
    second._process.wait(30)
    first.receive = lambda: {"error": "RuntimeError: Connection closed by peer"}
    with pytest.raises(Crashed, match=f"test: rank=1 of 2 on cpu {how}"):
        both._answer(first)
    assert both.ended


def test_a_rank_that_dies_ends_its_team_with_its_signal():
    both = Team("test", [CPU] * 2)
    problem = problem_of((64,), causal=True)
    session = Session(both, "ring", problem)
    session.load(inputs_of(problem))
    os.kill(both._ranks[1]._process.pid, signal.SIGSEGV)
    both._ranks[1]._process.wait(30)
    with pytest.raises(Crashed, match=r"test: rank=1 of 2 on cpu crashed \(SIGSEGV\); every rank has to answer"):
        session.run()
    assert all(rank._process.poll() is not None for rank in both._ranks)
    with pytest.raises(Crashed, match="have ended"):
        session.run()
    session.close()


def test_nothing_remains_of_an_owner_that_is_ended_while_ranks_open(tmp_path):
    words = [sys.executable, "-c", OPENING, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=child.environment()) as owner:
        assert owner.stdout is not None
        hanging = int(owner.stdout.readline())
        try:
            assert until(lambda: opened(owner.pid, tmp_path) == 4 or any(tmp_path.iterdir())), "it waits for rank 1"
            owner.kill()
            owner.wait(30)
            assert list(tmp_path.iterdir()) == []
        finally:
            os.kill(hanging, signal.SIGKILL)


def opened(pid: int, folder: Path) -> int:
    """Files of a folder that a process has open."""
    found = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += str(one.readlink()).startswith(str(folder))
    return found


OPENING = """
import os, pathlib, signal, sys
from attnbench.machine.device import CPU
from attnbench.parallel import team as teams
from attnbench.parallel.problem import Problem

teams.SHARED_MEMORY = pathlib.Path(sys.argv[1])
team = teams.Team("test", [CPU] * 2)
hanging = team._ranks[1]._process.pid
os.kill(hanging, signal.SIGSTOP)
print(hanging, flush=True)
teams.Session(team, "ring", Problem(lengths=(64,), heads=2, heads_kv=2, dim=16, dtype="float32", causal=True, scale=0.25))
"""


OWNER = """
import os, signal, sys
from attnbench.machine.device import CPU
from attnbench.parallel.problem import Problem
from attnbench.parallel.team import Session, Team

team = Team("test", [CPU] * 2)
problem = Problem(lengths=(64,), heads=2, heads_kv=2, dim=16, dtype="float32", causal=True, scale=0.25)
session = Session(team, "ring", problem)
ranks = [rank._process.pid for rank in team._ranks]
os.kill(ranks[1], signal.SIGSTOP)
print(*ranks, flush=True)
session.run()
"""


def test_a_rank_that_hangs_keeps_the_others_waiting_until_the_owner_is_ended_and_then_all_end():
    """As of a worker that `--timeout` ends."""
    words = [sys.executable, "-c", OWNER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=child.environment()) as owner:
        assert owner.stdout is not None
        waiting, hanging = map(int, owner.stdout.readline().split())
        try:
            assert alive(waiting)
            assert owner.poll() is None
            owner.kill()
            assert gone(waiting)
        finally:
            os.kill(hanging, signal.SIGKILL)
        assert gone(hanging)
