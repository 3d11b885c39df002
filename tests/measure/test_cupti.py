"""Attribution of kernel records by markers, and the proof that none was lost."""

from __future__ import annotations

import pytest

from attnbench.measure.timer import Untimed
from attnbench.measure.timers.cupti import MARKER, Activity, LostRecords, read


class Tape:
    """Writes what a profiler would have recorded of a batch."""

    def __init__(self) -> None:
        self.activities: list[Activity] = []
        self.now, self.correlation = 1000, 0

    def kernel(self, name: str, duration: int, *, gap: int = 10, queued_at: int = 0) -> None:
        self.correlation += 1
        launch = Activity("cudaLaunchKernel", queued_at, queued_at + 5, self.correlation, on_device=False)
        self.activities.append(launch)
        self.now += gap
        self.activities.append(Activity(name, self.now, self.now + duration, self.correlation, on_device=True))
        self.now += duration

    def sample(self, *kernels: tuple[str, int]) -> None:
        self.kernel("flush", 30_000)
        self.kernel(MARKER, 800)
        for name, duration in kernels:
            self.kernel(name, duration)
        self.kernel(MARKER, 800)


def test_a_sample_is_the_span_between_its_markers() -> None:
    tape = Tape()
    tape.sample(("a", 8000))
    tape.sample(("b1", 1000), ("b2", 2000))
    one, two = read(tape.activities, ["a", "b"])
    assert (one.ms, one.busy_ms, one.kernels) == (0.008, 0.008, ("a",))
    assert (two.ms, two.busy_ms, two.kernels) == (0.00301, 0.003, ("b1", "b2"))
    assert two.kernel_ms == (0.001, 0.002)


def test_attribution_is_by_position_and_not_by_name() -> None:
    tape = Tape()
    tape.sample(("flush", 7000))
    assert read(tape.activities, ["a"])[0].kernels == ("flush",)


def test_records_may_come_in_any_order() -> None:
    tape = Tape()
    tape.sample(("a", 8000), ("b", 10))
    assert read(reversed(tape.activities), ["a"]) == read(tape.activities, ["a"])


def test_overlapping_kernels_count_once_as_busy() -> None:
    tape = Tape()
    tape.sample(("a", 1000), ("b", 1000))
    shifted = [
        Activity(a.name, a.start - 510, a.end - 510, a.correlation, True) if a.name == "b" and a.on_device else a
        for a in tape.activities
    ]
    assert read(shifted, ["a"])[0].busy_ms == pytest.approx(0.0015)


def test_a_lost_marker_is_found() -> None:
    tape = Tape()
    tape.sample(("a", 8000))
    last = max((a for a in tape.activities if a.name == MARKER), key=lambda a: a.start)
    with pytest.raises(LostRecords, match="1 of 2 markers were recorded"):
        read([a for a in tape.activities if a is not last], ["a"])


def test_a_lost_kernel_is_found_by_its_launch() -> None:
    tape = Tape()
    tape.sample(("a", 8000), ("b", 100))
    with pytest.raises(LostRecords, match=r"1 of \d+ launches have no kernel record"):
        read([a for a in tape.activities if not (a.name == "b" and a.on_device)], ["a"])


def test_a_call_that_launches_nothing_has_no_kernel_time() -> None:
    tape = Tape()
    tape.sample()
    with pytest.raises(Untimed, match="cupti: noop launched nothing on the device; a CPU function") as why:
        read(tape.activities, ["noop"])
    assert why.value.subject == "noop"


def test_all_calls_of_a_batch_that_launch_nothing_are_named_at_once() -> None:
    tape = Tape()
    for kernels in ([], [("a", 8000)], [], []):
        tape.sample(*kernels)
    with pytest.raises(Untimed, match="cupti: noop launched nothing") as why:
        read(tape.activities, ["noop", "a", "idle", "noop"])
    assert (why.value.subject, why.value.subjects) == ("noop", {"noop", "idle"})


def test_a_late_host_is_seen_only_where_it_matters() -> None:
    tape = Tape()
    tape.kernel(MARKER, 800)
    tape.kernel("a", 1000, queued_at=10**9)
    tape.kernel(MARKER, 800)
    assert not read(tape.activities, ["a"])[0].waited
    tape = Tape()
    tape.kernel(MARKER, 800)
    tape.kernel("a", 1000)
    tape.kernel("b", 1000, queued_at=10**9)
    tape.kernel(MARKER, 800)
    assert read(tape.activities, ["a"])[0].waited


def test_the_time_of_a_sample_is_on_the_hosts_clock() -> None:
    tape = Tape()
    tape.sample(("a", 8000))
    start = next(a.start for a in tape.activities if a.name == "a" and a.on_device)
    assert read(tape.activities, ["a"], offset_ns=500)[0].at_s == (start - 500) / 1e9
