"""The forms whose rows are dealt by work, with ranks as threads of this process: drawn shapes, and forms that are wrong."""

from __future__ import annotations

import queue
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_problems import close, inputs_of, problem_of, truth

from attnbench.backends.base import Budget
from attnbench.check.compare import compare, make_truth
from attnbench.parallel.form import Group
from attnbench.parallel.forms import allgather, ring
from attnbench.parallel.problem import FUNCTIONS, HSTU
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD
from attnbench.workloads.hstu.inputs import make_inputs

PATIENCE_S = 30.0


class Arrival:
    """What is waited for: a message into its tensor."""

    def __init__(self, channel, into):
        self.channel, self.into = channel, into

    def wait(self):
        found = self.channel.get(timeout=PATIENCE_S)
        assert found.shape == self.into.shape
        self.into.copy_(found)


@dataclass(frozen=True)
class Threads(Group):
    """Ranks of one process: messages between two of them arrive in their order."""

    channels: dict = field(default_factory=dict)

    def swap(self, sends, receives):
        for rank, x in sends:
            if x.numel():
                self.channels[self.rank, rank].put(x.clone())
        return [Arrival(self.channels[rank, self.rank], x) for rank, x in receives if x.numel()]


def computed(form, problem, tensors, world):
    """The output of all ranks; each rank's inputs have to stay what they were."""
    channels = defaultdict(queue.SimpleQueue)
    ranks = [form(problem, Threads(rank, world, torch.device("cpu"), channels=channels)) for rank in range(world)]
    for one in ranks:
        for name, whole in tensors.items():
            getattr(one, name).copy_(torch.cat([whole[a:b] for a, b in one.rows()]))
        one.poison()
    before = [[x.clone() for x in (one.q, one.k, one.v)] for one in ranks]
    with ThreadPoolExecutor(world) as pool:
        list(pool.map(lambda one: one.run(), ranks))
    assert all(channel.empty() for channel in channels.values()), "something was sent that nobody received"
    out = torch.full(tensors["q"].shape, torch.nan, dtype=tensors["q"].dtype)
    for one, given_ in zip(ranks, before, strict=True):
        assert all(map(torch.equal, given_, (one.q, one.k, one.v)))
        for (a, b), rows in zip(one.rows(), one.result().split([b - a for a, b in one.rows()]), strict=True):
            out[a:b] = rows
    return out


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("form", [allgather.Form, ring.Form])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_right_on_whatever_is_drawn(function, form, data):
    world, causal = data.draw(st.integers(1, 5)), data.draw(st.booleans())
    lengths = tuple(data.draw(st.lists(st.integers(0, 3) | st.integers(0, 90), min_size=1, max_size=5)))
    lengths = lengths if any(lengths) else (1, *lengths)
    # With one KV head both chunks of a sequence are one launch of the all-gather, with four of them in some worlds.
    heads_kv = 4 if function == HSTU else data.draw(st.sampled_from([1, 4]))
    problem = problem_of(lengths, causal=causal, function=function, heads_kv=heads_kv)
    problem = replace(problem, divisor=max(lengths)) if function == HSTU else problem
    tensors = inputs_of(problem, seed=data.draw(st.integers(0, 9)))
    assert close(computed(form, problem, tensors, world), truth(problem, tensors))


def test_on_a_gpu_an_exchange_starts_before_the_next_kernel_takes_all_of_it(monkeypatch):
    done = []
    monkeypatch.setattr("torch.distributed.P2POp", lambda *operation: operation)
    monkeypatch.setattr("torch.distributed.batch_isend_irecv", lambda ops: done.append(f"{len(ops)} messages") or ops)
    monkeypatch.setattr("torch.cuda._sleep", lambda cycles: done.append("head start"))
    some, none = torch.zeros(3), torch.zeros(0)
    for device in ("cuda", "cpu"):
        group = Group(0, 2, torch.device(device))
        assert len(group.swap([(1, some), (1, none)], [(1, some)])) == 2
        assert group.swap([(1, none)], []) == []
    assert done == ["2 messages", "head start", "2 messages"]


def test_communicators_of_their_own_on_a_gpu(monkeypatch):
    done = []
    monkeypatch.setattr("torch.distributed.new_group", lambda: "another")
    monkeypatch.setattr("torch.ones", lambda *size, device: f"token on {device}")
    monkeypatch.setattr("torch.distributed.all_reduce", lambda token, group: done.append((token, group)))
    monkeypatch.setattr("torch.distributed.P2POp", lambda *operation: operation)
    monkeypatch.setattr("torch.distributed.batch_isend_irecv", list)
    monkeypatch.setattr("torch.cuda._sleep", lambda cycles: None)
    group, x = Group(0, 2, torch.device("cuda")), torch.zeros(3)
    other = group.beside()
    assert group.beside() is other, "a communicator holds memory of the card"
    assert done == [("token on cuda", "another")], "all ranks are there when it is created"
    assert [one.swap([(1, x)], [])[0][3] for one in (group, other)] == [None, "another"]
    on_cpu = Group(0, 2, torch.device("cpu"))
    assert on_cpu.beside() is on_cpu
    assert len(done) == 1


@dataclass(frozen=True)
class Noting(Threads):
    """Notes from which rank the messages come that a rank waits for."""

    noted: list = field(default_factory=list)

    def swap(self, sends, receives):
        works = super().swap(sends, receives)
        for work, (rank, _) in zip(works, receives, strict=True):
            work.wait = lambda rank=rank: self.noted.append(rank)
        return works


@pytest.mark.parametrize(
    ("heads_kv", "rank", "causal", "wanted"),
    [
        (4, 0, True, ["16 queries of 16 keys", 1, 2, "16 queries of 96 keys"]),
        (4, 1, True, [0, "16 queries of 32 keys", 2, "16 queries of 80 keys"]),
        (4, 2, True, [0, 1, "16 queries of 48 keys", "16 queries of 64 keys"]),
        (4, 1, False, [2, 0, "32 queries of 96 keys"]),
        # Both chunks in one launch.
        (2, 0, True, [1, 2, "32 queries of 112 keys"]),
        (2, 1, True, [2, 0, "32 queries of 112 keys"]),
    ],
)
def test_what_allgather_computes_before_which_messages(heads_kv, rank, causal, wanted, monkeypatch):
    group = Noting(rank, 3, torch.device("cpu"), channels=defaultdict(queue.SimpleQueue))

    def attended(q, k, v, of, problem, *, causal):
        group.noted.append(f"{len(q)} queries of {len(k)} keys")
        return torch.zeros_like(q), None

    monkeypatch.setattr(allgather, "attend", attended)
    allgather.Form(problem_of((96,), causal=causal, heads_kv=heads_kv), group).run()
    steps = [one for one, before in zip(group.noted, [None, *group.noted], strict=False) if one != before]
    assert steps == wanted


class LeavesOut(ring.Form):
    """Does not compute over what arrives in its last step."""

    def _add(self, step, merged):
        if step != self.steps[-1]:
            super()._add(step, merged)


class OwnChunk(ring.Form):
    """Computes over the rank's own keys only."""

    def _add(self, step, merged):
        pass


class Twice(ring.Form):
    """Computes over what arrives in the first step twice."""

    def _add(self, step, merged):
        for _ in range(2 if step == 1 else 1):
            super()._add(step, merged)


class ByChunk(ring.Form):
    """Divides by the rows of a rank instead of those of the longest sequence."""

    def _over_own(self):
        self.problem = replace(self.problem, divisor=len(self.q))
        return super()._over_own()


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(
    ("form", "right"), [(ring.Form, True), *((form, False) for form in (LeavesOut, OwnChunk, Twice, ByChunk))]
)
def test_the_check_catches_a_ring_that_leaves_out_or_repeats_a_chunk_or_divides_by_its_own_rows(form, right, world):
    case = WORKLOAD.case(
        {"batch": 1, "seqlen": 501, "nheads": 2, "attn_dim": 16, "dtype": "bf16", "causal": True, "gates": False}
    )
    inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
    problem = replace(problem_of((501,), causal=True, function=HSTU, heads_kv=2), heads=2, dtype="bfloat16")
    tensors = {name: getattr(inputs, name) for name in ("q", "k", "v")}
    exact, plain = (
        WORKLOAD.oracle(HSTU, case, inputs, dtype=one, draw=Draw()) for one in (torch.float64, torch.bfloat16)
    )
    expected = WORKLOAD.expected_errors(HSTU, case, inputs, draw=Draw())
    whole = make_truth(exact, plain, expected, torch.bfloat16, WORKLOAD.outputs(HSTU))
    outcome = compare({"out": computed(form, problem, tensors, world)}, whole, Budget())
    assert outcome.ok == right, outcome.faults
