"""Bounds of a roofline: the ceilings measured in the run, and the peaks of the data sheet.

A record says its share of the data sheet's roof at its own intensity, so that roof is known there.
Which part of it that is follows from what was measured: no copy is faster than the memory's peak and
no matmul faster than the card's, so a roof that would need a memory slower than the copy is the flat
one, and a roof below the matmul is the slope.  Where neither follows, it stays a mark at the case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnbench.record import Record


@dataclass(frozen=True, slots=True)
class Roof:
    """Bounds; what is not known is None."""

    flat: float | None = None
    "TFLOP/s"
    slope: float | None = None
    "TB/s, which is TFLOP/s a FLOP/byte"

    @property
    def ridge(self) -> float | None:
        """FLOP/byte from which the flat part bounds."""
        return self.flat / self.slope if self.flat and self.slope else None

    def line(self, low: float, high: float) -> list[tuple[float, float]]:
        """Corners between two intensities; of one part alone where the other is not known."""
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
    """The ceilings of some records of one machine and dtype: the highest, a ceiling being a maximum."""
    found = [record.ceilings for record in records]
    flat = max((value for one in found if (value := one.get("matmul_tflops"))), default=None)
    copy = max((value for one in found if (value := one.get("copy_gbps"))), default=None)
    return Roof(flat, copy / 1e3 if copy else None)


def promised_at(record: Record) -> float | None:
    """The data sheet's roof at the record's own intensity, in TFLOP/s; None where its share counts executed work."""
    rate = record.rate
    if rate is None or rate.peak_counts == "executed" or not rate.tflops or not rate.percent_of_peak:
        return None
    return float(f"{100 * rate.tflops / rate.percent_of_peak:.6g}")  # as the data sheet has it, 989.5, in each record


def promised(records: Sequence[Record]) -> Roof:
    """As much of the data sheet's roof as follows from the records."""
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
