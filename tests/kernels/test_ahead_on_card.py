"""On a card: what was compiled ahead is found, and the real call compiles nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton import knobs

from attnbench.kernels import Card, warm
from attnbench.kernels.hstu.paged.api import Step
from attnbench.machine.device import Device
from attnbench.record import PlannedGroup
from attnbench.sweep.ahead import CompiledAhead, default_jobs
from attnbench.worker.entry import backend_for

from .test_ahead import CALLS, SESSIONS, case_of

pytestmark = pytest.mark.gpu


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache, of this process and those that it starts."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


@contextmanager
def looked_up() -> Iterator[list[tuple[str, bool]]]:
    """Kernels that Triton looks for in its cache in this process, and whether they are there."""
    found: list[tuple[str, bool]] = []
    before = knobs.compilation.listener
    knobs.compilation.listener = lambda **told: found.append((told["metadata"]["name"], told["cache_hit"]))
    try:
        yield found
    finally:
        knobs.compilation.listener = before


def on_card(value: Any) -> Any:
    """The same tensor on the card, with its strides and alignment."""
    if isinstance(value, Step):
        names = ("offsets", "cached", "indptr", "indices", "num_targets")
        tensors = {name: on_card(getattr(value, name)) for name in names}
        return Step(**tensors, max_new=value.max_new, max_cached=value.max_cached)
    if not isinstance(value, torch.Tensor):
        return value
    past = value.data_ptr() % 16 // value.element_size()
    room = past + 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    made = torch.zeros(room, dtype=value.dtype, device="cuda").as_strided(value.shape, value.stride(), past)
    made.copy_(value.detach())
    return made.detach().requires_grad_(value.requires_grad)


def test_calls_after_warm_compile_nothing(cache):
    calls = []
    for make in CALLS.values():
        call = make()
        calls.append(partial(call.func, *map(on_card, call.args), **call.keywords))
    with looked_up() as found:
        done = warm(*calls)
        assert done.failed == 0
        assert found == []
        for call in calls:
            results = call()
            first = results[0] if isinstance(results, tuple) else results
            if isinstance(first, torch.Tensor) and first.requires_grad:
                first.sum().backward()
        torch.cuda.synchronize()
    assert {name for name, hit in found if not hit} == set()
    assert len(found) == done.kernels


def test_sessions_after_a_plan_is_compiled_ahead_compile_nothing(cache):
    groups, sessions, missed = [], [], set()
    for number, (words, (name, shape)) in enumerate(SESSIONS.items()):
        workload, case = case_of(name, shape)
        sessions.append((words, workload, case, name))
        groups.append(
            PlannedGroup(
                group=str(number), workload=workload.name, case=case.to_dict(), case_id=str(number), backends=(name,)
            )
        )
    with CompiledAhead(groups, Device("cuda", 0), (), jobs=default_jobs()) as ahead:
        for group in groups:
            ahead.wait_for(group)
        assert 20 < ahead.done == ahead.kernels
    with looked_up() as found:
        for words, workload, case, name in sessions:
            start = len(found)
            inputs = workload.inputs(case, seed=1, kind="normal", device="cuda")
            with backend_for(name, case, ()).session(case, inputs) as launch:
                launch.forward()
                if case.mode != "fwd":
                    launch.call(case.mode)()
            missed |= {(words, name) for name, hit in found[start:] if not hit}
        torch.cuda.synchronize()
    assert missed == set()
    assert len({name for name, _ in found}) > 10


def test_the_current_card_is_the_one_that_is_asked(cache):
    properties = torch.cuda.get_device_properties(0)
    assert Card.current() == Card((properties.major, properties.minor), properties.multi_processor_count)
