"""The timers on a real GPU: they agree where expected, and the cache state is the declared one."""

from __future__ import annotations

import statistics
import time

import pytest

torch = pytest.importorskip("torch")

from attnbench.machine.device import Device  # noqa: E402 (after importorskip)
from attnbench.measure.memory import peak  # noqa: E402 (after importorskip)
from attnbench.measure.plan import Plan  # noqa: E402 (after importorskip)
from attnbench.measure.sampling import sample  # noqa: E402 (after importorskip)
from attnbench.measure.subject import Subject  # noqa: E402 (after importorskip)
from attnbench.stats.ratio import paired_ratio  # noqa: E402 (after importorskip)

pytestmark = pytest.mark.gpu


def product(size: int):
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def measured(call, **plan):
    call()
    torch.cuda.synchronize()
    plan = {"max_seconds": 0.3, "rel_ci": 0.002} | plan
    subjects = [Subject(name=name, call=call) for name in ("a", "b")]
    return sample(subjects, device=Device("cuda"), plan=Plan(**plan))


def median(group) -> float:
    return statistics.median(group.timings[0].samples_ms)


def test_timers_agree_on_a_long_kernel() -> None:
    call = product(4096)
    times = {timer: median(measured(call, timer=timer)) for timer in ("cupti", "events", "graph", "wall")}
    wall = times.pop("wall")
    for ms in times.values():
        assert ms == pytest.approx(times["cupti"], rel=0.08), times
    # The host's launch and wait are in it, some 10 to 50 µs by the host.
    assert times["cupti"] < wall < times["cupti"] + 0.1


def test_kernel_time_is_shorter_than_events_on_a_short_kernel() -> None:
    call = product(128)
    cupti, events = median(measured(call, timer="cupti")), median(measured(call, timer="events"))
    assert cupti < events < cupti + 0.02


def test_the_same_kernel_twice_is_the_same() -> None:
    group = measured(product(4096), rel_ci=0.0005)
    a, b = (dict(zip(t.rounds, t.samples_ms, strict=True)) for t in group.timings)
    assert paired_ratio(a, b, tick=3.2e-5).ratio == pytest.approx(1.0, abs=0.002)


def test_clocks_and_power_are_read() -> None:
    group = measured(product(4096))
    clocks = group.timings[0].sm_mhz
    assert all(clock and 200 < clock < 4000 for clock in clocks)
    assert group.power is None or all(watts is None or 0 < watts < 2000 for watts in group.power.watts)


def test_a_cold_cache_is_colder_than_a_warm_one() -> None:
    # 16 MB read and written once: it fits the L2 of every card this runs on, so only a flush makes it slow.
    x, y = torch.randn(4 << 20, device="cuda").half(), torch.empty(4 << 20, device="cuda", dtype=torch.half)
    cold, warm = (median(measured(lambda: y.copy_(x), l2=l2)) for l2 in ("cold", "warm"))
    assert cold > 1.15 * warm


def test_the_kernels_of_a_call_are_named_in_order() -> None:
    x = torch.randn(1 << 20, device="cuda")
    group = measured(lambda: x.exp().sum())
    timing = group.timings[0]
    assert len(timing.kernels) == len(timing.kernel_ms) >= 2
    assert "exp" in timing.kernels[0]
    assert "reduce" in timing.kernels[-1]
    assert timing.busy_ms <= statistics.median(timing.samples_ms)


def test_a_call_that_launches_nothing_is_refused() -> None:
    from attnbench.errors import Unavailable

    with pytest.raises(Unavailable, match="launched nothing"):
        measured(lambda: None, timer="cupti")


def test_peak_memory_is_the_calls_own() -> None:
    x = torch.ones(1 << 20, device="cuda")
    held = torch.ones(1 << 24, device="cuda")
    found = peak(lambda: (x + 1) * 2, Device("cuda"))
    assert found.allocated == 2 * x.numel() * 4
    assert found.allocated <= found.reserved < held.numel() * 4, "what was there before does not count"


def test_a_call_whose_launches_take_the_host_long_is_timed_as_the_device_works() -> None:
    x = torch.randn(1 << 20, device="cuda")

    def call() -> None:
        for _ in range(20):
            time.sleep(1e-3)  # what a step of several models costs a slow host
            for _ in range(10):
                x.mul_(1.0)

    group = measured(call, timer="cupti", iterations=10)
    timing = group.timings[0]
    assert timing.host_ms > 20
    assert median(group) < 2 * timing.busy_ms
