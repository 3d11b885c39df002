"""Place a backend on the roofline: the exact useful work of the case over ncu's measurements.

ncu's counts of tensor operations do not include Hopper's wgmma, so the work is computed from the workload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attnbench.machine.peaks import Peak
from attnbench.profile.capture import Capture, KernelRow
from attnbench.record import Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One backend on one case; values that ncu did not measure are None."""

    backend: str
    case: str
    flops: int
    "useful FLOPs of a launch"
    ms: float | None
    "all kernels of a launch as ncu times them: serialized, without gaps"
    dram_mb: float | None
    peak: Peak | None = None

    @property
    def tflops(self) -> float | None:
        """Useful FLOPs over the time."""
        return None if not self.ms else self.flops / self.ms / 1e9

    @property
    def gbps(self) -> float | None:
        """DRAM traffic over the time."""
        return None if not self.ms or self.dram_mb is None else self.dram_mb / self.ms

    @property
    def intensity(self) -> float | None:
        """Useful FLOPs per byte of DRAM traffic."""
        return None if not self.dram_mb else self.flops / self.dram_mb / 1e6

    @property
    def percent_of_compute(self) -> float | None:
        """Percentage of the data sheet's dense peak."""
        top = self.peak.tflops if self.peak else None
        return None if self.tflops is None or not top else 100.0 * self.tflops / top

    @property
    def percent_of_memory(self) -> float | None:
        """Percentage of the data sheet's memory bandwidth."""
        top = self.peak.memory_tbps if self.peak else None
        return None if self.gbps is None or not top else self.gbps / top / 10.0


def points(
    captures: Iterable[Capture], works: Mapping[str, Work], peaks: Mapping[str, Peak | None], launches: int
) -> list[Point]:
    """Return one point for each backend and case of ncu's captures.

    Args:
        captures: those of other tools are skipped.
        works: work of the known cases, by case id.
        peaks: peak of the GPU at each case's precision, by case id.
        launches: launches of each backend in the window.
    """
    found = []
    for capture in captures:
        owners = dict.fromkeys((row.backend, row.case) for row in capture.kernels) if capture.tool == "ncu" else {}
        for backend, case in owners:
            if backend is not None and case is not None and case in works:
                rows = [row for row in capture.kernels if (row.backend, row.case) == (backend, case)]
                found.append(
                    Point(
                        backend=backend,
                        case=case,
                        flops=works[case].flops,
                        ms=_ms(rows, launches),
                        dram_mb=_dram_mb(rows, launches),
                        peak=peaks.get(case),
                    )
                )
    return found


def _ms(rows: Iterable[KernelRow], launches: int) -> float | None:
    times = [row.total_ms for row in rows]
    return None if None in times else sum(time for time in times if time is not None) / launches


def _dram_mb(rows: Iterable[KernelRow], launches: int) -> float | None:
    """Return the DRAM traffic of a launch, from bytes if the set has them, else from rate and time."""
    total = 0.0
    for row in rows:
        size, rate = row.counters.get("dram_bytes"), row.counters.get("dram_gbps")
        if size is not None:
            total += row.calls * size / 1e6
        elif rate is not None and row.total_ms is not None:
            total += rate * row.total_ms
        else:
            return None
    return total / launches
