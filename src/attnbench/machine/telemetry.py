"""Record power and temperature during a measurement, as a time-stamped series."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from attnbench.machine.device import Device
from attnbench.machine.nvml import Gpu, open_gpu
from attnbench.record import PowerSeries


class PowerSampler:
    """Reads board power and temperature in a thread while the block runs.

    On a CPU, or if NVML does not answer, it does nothing and `series` is None.  The driver updates its counter every
    20-100 ms, so a shorter kernel has no power value of its own.
    """

    def __init__(self, device: Device, period_s: float = 0.05) -> None:
        self._device = device
        self._period_s = period_s
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._readings: list[tuple[float, float | None, float | None]] = []
        self.entered_s = 0.0
        "time.perf_counter() at the end of entering, the zero of the series"

    def __enter__(self) -> PowerSampler:
        self._readings.clear()
        self._stop.clear()
        gpu = open_gpu(self._device)
        answers = gpu is not None and gpu.power_w() is not None
        self.entered_s = time.perf_counter()  # after the driver's first, slow answer
        if gpu is not None and answers:
            self._thread = threading.Thread(target=self._read, args=(gpu,), name="power", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def series(self, start_s: float = 0.0) -> PowerSeries | None:
        """Return the readings so far.

        Args:
            start_s: seconds after entering; earlier readings (a warm-up) are omitted.

        Returns:
            Readings with `at_s` in seconds since entering, whatever `start_s` is; None if there
            are none.
        """
        kept = [reading for reading in list(self._readings) if reading[0] >= start_s]
        if not kept:
            return None
        at_s, watts, celsius = zip(*kept, strict=True)
        return PowerSeries(at_s=at_s, watts=watts, celsius=celsius)

    def _read(self, gpu: Gpu) -> None:
        due = time.perf_counter()
        while True:
            before = time.perf_counter()
            watts, heat = gpu.power_w(), gpu.celsius()
            # A query can take milliseconds: its midpoint is the best estimate of the time of the reading.
            at_s = (before + time.perf_counter()) / 2 - self.entered_s
            self._readings.append((at_s, watts, None if heat is None else float(heat)))
            due = max(due + self._period_s, time.perf_counter())
            if self._stop.wait(due - time.perf_counter()):
                return
