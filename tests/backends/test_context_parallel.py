"""Cases that the adapters of `attention-cp` refuse, and the refusal of an impossible figure."""

from __future__ import annotations

from math import gcd

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.context_parallel import CpLaunch, hidden_of
from attnbench.backends.registry import all_backends
from attnbench.errors import AttnbenchError, Unavailable, Unsupported
from attnbench.parallel.form import Group
from attnbench.parallel.forms import torch_ring, yunchang
from attnbench.parallel.problem import Problem
from attnbench.workloads.attention_cp import WORKLOAD

NAMES = {"cp-one", "cp-ulysses", "cp-allgather", "cp-ring", "cp-torch", "cp-ring-flash-attn", "cp-yunchang"}


def case_of(**values):
    shape = {"world": 2, "batch": 1, "seqlen": 64, "nheads": 4, "headdim": 16, "dtype": "bf16", "causal": True}
    return WORKLOAD.case(shape | values)


def test_these_are_the_backends_of_the_workload():
    assert {name for name, one in all_backends().items() if one.workload == "attention-cp"} == NAMES


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("cp-ulysses", {"nheads": 3}, "nheads=3 is not shared evenly by the ranks; a multiple of world=2"),
        ("cp-ulysses", {"nheads_kv": 1}, "nheads_kv=1 is not shared evenly by the ranks; a multiple of world=2"),
        ("cp-torch", {"function": "hstu"}, "function=hstu is not computed; softmax"),
        ("cp-torch", {"seqlen": 66}, "seqlen=66 is not cut evenly; a multiple of 4 (2 × world)"),
        ("cp-torch", {"nheads_kv": 2}, "nheads_kv=2 is not supported; nheads=4"),
        ("cp-yunchang", {"dtype": "fp32"}, "dtype=fp32 is not supported; fp16, bf16"),
        ("cp-ring-flash-attn", {"lengths": "40", "seqlen": 64}, "lengths=40 is not supported; full"),
    ],
)
def test_a_form_refuses_what_it_cannot_take_and_says_the_field(name, values, words):
    with pytest.raises(Unsupported) as refused:
        all_backends()[name].check(case_of(**values), Machine("cpu"))
    assert str(refused.value) == f"{name}: {words}"


def test_a_torch_without_nccl_cannot_run_on_gpus_and_says_so(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: False)
    with pytest.raises(Unavailable, match=r"cp-one: torch=NCCL is not part of this build; a build with NCCL"):
        all_backends()["cp-one"].check(case_of(), Machine("cuda", (9, 0)))
    all_backends()["cp-one"].check(case_of(), Machine("cpu"))


class Reporting:
    """A session of two ranks that take as long as told."""

    def __init__(self, ms: float, peak: float | None) -> None:
        self.team, self.devices, self.last_ms, self.peak = self, [0, 1], ms, peak

    def peak_tflops(self, dtype: str) -> float | None:
        return self.peak

    def load(self, tensors) -> None:
        assert {name: x.dim() for name, x in tensors.items()} == {"q": 3, "k": 3, "v": 3}


def test_a_time_that_no_card_reaches_is_an_error():
    """As of a library that computed its own chunk only and looked twice as fast as the card can be."""
    case = case_of(seqlen=1024)
    inputs = WORKLOAD.inputs(case, seed=0, kind="zeros", device="cpu")
    at_peak = WORKLOAD.work(case).flops / 2 / 1e9 / 1000  # ms of two cards of 1000 TFLOP/s
    assert CpLaunch("cp-x", case, Reporting(1.01 * at_peak, 1000.0), inputs).reported_ms() == 1.01 * at_peak
    assert CpLaunch("cp-x", case, Reporting(at_peak / 9, None), inputs).reported_ms() == at_peak / 9
    with pytest.raises(AttnbenchError, match=r"cp-x: time=1111 TFLOP/s a GPU is above the card's peak of 1000"):
        CpLaunch("cp-x", case, Reporting(0.9 * at_peak, 1000.0), inputs).reported_ms()


@pytest.mark.parametrize(
    ("calls", "hidden"),
    [
        ([10.5] * 9, (1.5, 75.0)),
        ([12.0] * 9, (0.0, 0.0)),
        ([12.9] * 9, (0.0, 0.0)),  # longer than its parts: nothing is hidden
        ([9.0] * 9, (2.0, 100.0)),  # shorter than its attention alone: everything is, not more
        ([10.5, 10.5, 10.4, 10.6, 10.5, 10.5, 10.5, 3.0, 30.0], (1.5, 75.0)),
        ([9.0, 9.1, 9.2, 10.0, 10.5, 11.0, 11.5, 11.9, 12.0], (None, None)),  # noise of more than the exchange
    ],
)
def test_what_a_call_hides_is_between_nothing_and_the_whole_exchange(calls, hidden):
    rounds = [{None: call, "exchange": 1.5, "permute": 0.5, "attention": 10.0} for call in calls]
    assert tuple(hidden_of(rounds).values()) == pytest.approx(hidden)
    assert hidden_of([{None: 9.9, "exchange": 0.0, "attention": 10.0}] * 9)["hidden_percent"] is None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("world", "heads_kv"), [(2, 2), (2, 1), (4, 4), (4, 2), (4, 1)])
def test_libraries_of_others_are_given_every_row_once_in_the_order_they_deal(world, heads_kv, causal):
    problem = Problem(lengths=(64, 64), heads=4, heads_kv=heads_kv, dim=8, dtype="float32", causal=causal, scale=1.0)
    dealt = {"torch": [], "yunchang": []}
    for rank in range(world):
        group = Group(rank, world, torch.device("cpu"))
        dealt["torch"] += torch_ring.equal_rows(problem, group)
        own = object.__new__(yunchang.Form)
        own.problem, own.group, own.heads_over = problem, group, gcd(heads_kv, world)
        rows = own.rows()
        assert sum(b - a for a, b in rows) == 2 * 64 // world
        dealt["yunchang"] += rows
    for rows in dealt.values():
        assert sorted(row for a, b in rows for row in range(a, b)) == list(range(128))


def test_torch_deals_rows_head_and_tail_as_we_lay_them():
    """Its private load balancer is asked, so that another order of another version shows."""
    place = "torch.distributed.tensor.experimental._context_parallel._load_balancer"
    order = (
        pytest.importorskip(place)
        ._HeadTailLoadBalancer(64, 2, torch.device("cpu"))
        ._generate_indices()
        .flatten()
        .tolist()
    )
    problem = Problem(lengths=(64,), heads=4, heads_kv=4, dim=8, dtype="float32", causal=True, scale=1.0)
    ours = [
        row
        for rank in range(2)
        for a, b in torch_ring.equal_rows(problem, Group(rank, 2, torch.device("cpu")))
        for row in range(a, b)
    ]
    assert ours == order
