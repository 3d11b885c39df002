"""The stage of a group: what a device needs so that one launch can be sampled like another.

A sample is *make ready* (reset what keeps state, put the caches into the declared state), then the
call.  On a GPU the call stands between two markers of the clock probe, and the host runs ahead of
the device: a spin kernel holds the stream (`lead`) while the calls of a batch are queued, so that
what is measured is the device's time and not the host's way to it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.errors import Unavailable, UsageError, refusal, unknown
from attnbench.machine.cache import l2_bytes
from attnbench.machine.device import CPU, Device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnbench.measure.subject import Subject

L2_STATES = ("auto", "cold", "warm")
MAX_BATCH = 512
"""Samples between two synchronisations, at most: the marker has a slot for each end of each."""
MAX_LEAD_S = 0.25


class Stage(ABC):
    """A device made ready for sampling.  Use as a context manager."""

    device: Device
    kind: ClassVar[str]
    "cpu or cuda"
    l2: str
    "cold or warm"

    def __init__(self) -> None:
        self.kept: dict[object, Any] = {}
        "what a timer keeps between batches of this stage (captured graphs)"
        self.queued_s = 0.0
        "host time from `begin` to the first `end` after it: how long it took to queue the batch"
        self._begun: float | None = None

    def __enter__(self) -> Stage:
        """Open the stage."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release what the harness holds on the device."""
        self.kept.clear()

    def flush(self) -> None:  # noqa: B027 (a device without a cold state has nothing to do)
        """Put the cache into the declared state where that takes no call of the subject (cold)."""

    def lead(self, seconds: float) -> None:  # noqa: B027 (a device that queues nothing has no backlog)
        """Hold the device, so that the host gets ahead of it."""

    def begin(self, lead_s: float) -> None:
        """Start a batch; hold the device for `lead_s` so that the host gets ahead."""
        self._begun = time.perf_counter()

    @abstractmethod
    def ready(self, subject: Subject) -> None:
        """Reset the subject and put the cache into the declared state."""

    @abstractmethod
    def mark(self) -> None:
        """Fence one end of a sample."""

    def end(self) -> None:
        """Wait for everything that was started."""
        if self._begun is not None:
            self.queued_s, self._begun = time.perf_counter() - self._begun, None

    @abstractmethod
    def sm_mhz(self, count: int) -> list[float | None]:
        """Mean SM clock during each sample of the batch; None where it is not known."""


class CpuStage(Stage):
    """The CPU: nothing to queue, caches as the calls leave them."""

    kind = "cpu"

    def __init__(self, device: Device = CPU, *, l2: str = "auto") -> None:
        if l2 == "cold":
            raise UsageError(refusal("cpu", "l2", "cold", "is for GPUs", "warm or auto on a CPU"))
        super().__init__()
        self.device, self.l2 = device, "warm"

    def ready(self, subject: Subject) -> None:
        """Reset the subject."""
        if subject.reset:
            subject.reset()

    def mark(self) -> None:
        """Nothing to fence."""

    def sm_mhz(self, count: int) -> list[float | None]:
        """A CPU has no SMs."""
        return [None] * count


class CudaStage(Stage):
    """A GPU: flush, markers, and a spin kernel that lets the host get ahead."""

    kind = "cuda"

    def __init__(self, device: Device, *, l2: str = "auto") -> None:
        import torch

        from attnbench.measure.probe import Flush, Marker

        super().__init__()
        self.device, self.l2 = device, "cold" if l2 == "auto" else l2
        size = l2_bytes(device)
        if self.l2 == "cold" and size is None:
            raise Unavailable(f"{device}: l2=cold needs the size of the L2, which the driver does not say; --l2 warm")
        self._current: Any = torch.cuda.device(str(device))
        # triton compiles and launches for the current device, wherever the tensors are
        with torch.cuda.device(str(device)):
            self._flush: Any = Flush(device, size) if size else None
            self._marker = Marker(device, slots=2 * MAX_BATCH)
        self._cycles_per_s = 1e3 * _max_clock_khz(device)
        synchronize(device)

    def __enter__(self) -> CudaStage:
        """Make the device the current one, whose current stream is measured."""
        self._current.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the flush buffer and the stamps."""
        super().__exit__()
        self._current.__exit__(None, None, None)
        self._flush = None
        del self._marker

    def begin(self, lead_s: float) -> None:
        """Start a batch behind a spin kernel of `lead_s`."""
        self._marker.start()
        synchronize(self.device)
        self.lead(lead_s)
        super().begin(lead_s)

    def lead(self, seconds: float) -> None:
        """Put a spin kernel into the stream."""
        import torch

        if seconds > 0:
            torch.cuda._sleep(int(min(seconds, MAX_LEAD_S) * self._cycles_per_s))

    def ready(self, subject: Subject) -> None:
        """Reset; then flush the L2 (cold) or let the subject fill it by a call of its own (warm)."""
        if subject.reset:
            subject.reset()
        if self.l2 == "warm" and subject.callable_untimed:
            subject.call()
            if subject.reset:
                subject.reset()
        elif self._flush is not None:
            self._flush()

    def flush(self) -> None:
        """Put a flush of the L2 into the stream (cold)."""
        if self.l2 == "cold":
            self._flush()

    def mark(self) -> None:
        """Stamp every SM's clock."""
        self._marker()

    def end(self) -> None:
        """Synchronise the device."""
        super().end()
        synchronize(self.device)

    def sm_mhz(self, count: int) -> list[float | None]:
        """From the markers at both ends of each sample."""
        return self._marker.sm_mhz(count)


def open_stage(device: Device, l2: str) -> Stage:
    """The stage for a device.

    Args:
        device: what is measured on.
        l2: auto, cold or warm.

    Raises:
        UsageError: unknown cache state, or one this device has not.
        Unavailable: the device is not there.
    """
    if l2 not in L2_STATES:
        raise unknown("measure", "l2", l2, L2_STATES)
    return CpuStage(device, l2=l2) if not device.on_gpu else CudaStage(device, l2=l2)


def synchronize(device: Device) -> None:
    """Wait for everything a device was given; a CPU has nothing to wait for."""
    if device.on_gpu:
        import torch

        torch.cuda.synchronize(str(device))


def run_untimed(stage: Stage, subjects: Sequence[Subject], seconds: float) -> None:
    """Call the subjects in turn for about `seconds`, so that clocks, power and caches settle."""
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        for subject in subjects:
            if subject.reset:
                subject.reset()
            subject.call()
        stage.end()


def _max_clock_khz(device: Device) -> float:
    import torch

    # torch's clock_rate is the SM's highest; where a build has it not, 2 GHz: the spin only has to be long enough.
    return float(getattr(torch.cuda.get_device_properties(str(device)), "clock_rate", 0) or 2_000_000)
