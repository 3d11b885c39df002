"""Bounds of a roofline: the ceilings measured in the run, and the peaks of the data sheet.

A record has its share of the data sheet's roof at its own intensity, so the roof is known at that point.
Which part of the roof it is follows from the measurements: no copy is faster than the memory's peak and
no matmul faster than the card's.  So a roof that would need a memory slower than the measured copy is the flat
part, and a roof below the measured matmul is the slope.  If neither follows, it is only marked at the case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnbench.record import Record


@dataclass(frozen=True, slots=True)
class Roof:
    """Bounds; unknown ones are None."""

    flat: float | None = None
    "TFLOP/s"
    slope: float | None = None
    "TB/s, which equals TFLOP/s per FLOP/byte"

    @property
    def ridge(self) -> float | None:
        """FLOP/byte above which the flat part is the bound."""
        return self.flat / self.slope if self.flat and self.slope else None

    def line(self, low: float, high: float) -> list[tuple[float, float]]:
        """Corners between two intensities; of one part only if the other is unknown."""
        if self.flat and self.slope and self.ridge:
            inner = [self.ridge] if low < self.ridge < high else []
            return [(at, min(self.flat, self.slope * at)) for at in (low, *inner, high)]
        if self.flat:
            return [(low, self.flat), (high, self.flat)]
        return [(low, self.slope * low), (high, self.slope * high)] if self.slope else []


def intensity(record: Record) -> float | None:
    """Useful FLOP per byte that must be moved."""
    return record.work.flops / record.work.bytes if record.work and record.work.bytes and record.work.flops else None


def measured(records: Iterable[Record]) -> Roof:
    """Return the ceilings of some records of one machine and dtype: the highest, as a ceiling is a maximum."""
    found = [record.ceilings for record in records]
    flat = max((value for one in found if (value := one.get("matmul_tflops"))), default=None)
    copy = max((value for one in found if (value := one.get("copy_gbps"))), default=None)
    return Roof(flat, copy / 1e3 if copy else None)


def promised_at(record: Record) -> float | None:
    """Return the data sheet's roof at the record's own intensity, TFLOP/s; None if its share counts executed work."""
    rate = record.rate
    if rate is None or rate.peak_counts == "executed" or not rate.tflops or not rate.percent_of_peak:
        return None
    return float(f"{100 * rate.tflops / rate.percent_of_peak:.6g}")  # rounded to the data sheet's digits, 989.5


def promised(records: Sequence[Record]) -> Roof:
    """Return as much of the data sheet's roof as follows from the records."""
    known, flats, slopes = measured(records), set(), set()
    for record in records:
        roof, at = promised_at(record), intensity(record)
        if roof is None or at is None:
            continue
        if known.slope and roof / at < known.slope:
            flats.add(roof)
        elif known.flat and roof < known.flat:
            slopes.add(roof / at)
    return Roof(max(flats, default=None), max(slopes, default=None))
