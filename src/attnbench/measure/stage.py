"""The stage of a group: the state of a device that makes samples of different launches comparable.

Before a sample, the stage resets a stateful subject and puts the caches into the declared state; then it makes the
call.  On a GPU the call stands between two markers of the clock probe, and the host runs ahead of the device: a spin
kernel blocks the stream (`lead`) while the calls of a batch are queued, so that the sample is the device's time and
does not include the host's launch path.
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
"""Upper limit of samples between two synchronisations: the marker has a slot for both ends of each."""
MAX_LEAD_S = 0.25


class Stage(ABC):
    """A device prepared for sampling.  Use as a context manager."""

    device: Device
    kind: ClassVar[str]
    "cpu or cuda"
    l2: str
    "cold or warm"

    def __init__(self) -> None:
        self.kept: dict[object, Any] = {}
        "objects that a timer keeps between batches of this stage (captured graphs)"
        self.queued_s = 0.0
        "host time from `begin` to the first `end` after it: the time to queue the batch"
        self._begun: float | None = None

    def __enter__(self) -> Stage:
        """Open the stage."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the memory that the harness holds on the device."""
        self.kept.clear()

    def flush(self) -> None:  # noqa: B027 (a device without a cold state has nothing to do)
        """Put the cache into the declared state where that needs no call of the subject (cold)."""

    def lead(self, seconds: float) -> None:  # noqa: B027 (a device that queues nothing has no backlog)
        """Block the device, so that the host gets ahead of it."""

    def begin(self, lead_s: float) -> None:
        """Start a batch; block the device for `lead_s` so that the host gets ahead."""
        self._begun = time.perf_counter()

    @abstractmethod
    def ready(self, subject: Subject) -> None:
        """Reset the subject and put the cache into the declared state."""

    @abstractmethod
    def mark(self) -> None:
        """Mark one end of a sample."""

    def end(self) -> None:
        """Wait for all work that was started."""
        if self._begun is not None:
            self.queued_s, self._begun = time.perf_counter() - self._begun, None

    @abstractmethod
    def sm_mhz(self, count: int) -> list[float | None]:
        """Return the mean SM clock during each sample of the batch; None where it is unknown."""


class CpuStage(Stage):
    """The CPU: nothing is queued, and caches stay as the calls leave them."""

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
        """Do nothing: calls of a CPU need no markers."""

    def sm_mhz(self, count: int) -> list[float | None]:
        """Return None for each sample: a CPU has no SMs."""
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
        # Triton compiles and launches for the current device, wherever the tensors are.
        with torch.cuda.device(str(device)):
            self._flush: Any = Flush(device, size) if size else None
            self._marker = Marker(device, slots=2 * MAX_BATCH)
        self._cycles_per_s = 1e3 * _max_clock_khz(device)
        synchronize(device)

    def __enter__(self) -> CudaStage:
        """Make the device current; its current stream is measured."""
        self._current.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the flush buffer and the stamps."""
        super().__exit__()
        self._current.__exit__(None, None, None)
        self._flush = None
        del self._marker

    def begin(self, lead_s: float) -> None:
        """Start a batch behind a spin kernel that runs for `lead_s`."""
        self._marker.start()
        synchronize(self.device)
        self.lead(lead_s)
        super().begin(lead_s)

    def lead(self, seconds: float) -> None:
        """Queue a spin kernel on the stream."""
        import torch

        if seconds > 0:
            torch.cuda._sleep(int(min(seconds, MAX_LEAD_S) * self._cycles_per_s))

    def ready(self, subject: Subject) -> None:
        """Reset the subject; then flush the L2 (cold) or let a call of the subject fill it (warm)."""
        if subject.reset:
            subject.reset()
        if self.l2 == "warm" and subject.callable_untimed:
            subject.call()
            if subject.reset:
                subject.reset()
        elif self._flush is not None:
            self._flush()

    def flush(self) -> None:
        """Queue a flush of the L2 on the stream (cold)."""
        if self.l2 == "cold":
            self._flush()

    def mark(self) -> None:
        """Queue a stamp of every SM's clock."""
        self._marker()

    def end(self) -> None:
        """Synchronise the device."""
        super().end()
        synchronize(self.device)

    def sm_mhz(self, count: int) -> list[float | None]:
        """Compute the clocks from the markers at both ends of each sample."""
        return self._marker.sm_mhz(count)


def open_stage(device: Device, l2: str) -> Stage:
    """Return the stage for a device.

    Args:
        device: where the group runs.
        l2: auto, cold or warm.

    Raises:
        UsageError: unknown cache state, or one that this device does not have.
        Unavailable: the device is not there.
    """
    if l2 not in L2_STATES:
        raise unknown("measure", "l2", l2, L2_STATES)
    return CpuStage(device, l2=l2) if not device.on_gpu else CudaStage(device, l2=l2)


def synchronize(device: Device) -> None:
    """Wait for all work queued on a device; on a CPU nothing is queued."""
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

    # torch's clock_rate is the SM's highest clock; builds without it get 2 GHz, as the spin only has to be long enough.
    return float(getattr(torch.cuda.get_device_properties(str(device)), "clock_rate", 0) or 2_000_000)
