"""Checks that the settings of a run can be used on its device: timer, cache state, clocks.

These checks run before anything starts.  `suites` reads the settings but knows no timers.
"""

from __future__ import annotations

from attnbench.errors import Unavailable, refusal, unknown
from attnbench.machine.device import Device
from attnbench.measure.timer import ALL, all_timers, names_of
from attnbench.record import Settings


def check_settings(settings: Settings) -> None:
    """Refuse settings that cannot be used on the device.

    Raises:
        UsageError: no such timer.
        Unavailable: the timer, the cache state or locked clocks do not exist for this kind of device.
    """
    device, timers = Device.parse(settings.device), all_timers()
    for name in names_of(settings.timer, "attnbench", "--timer"):
        if name not in ("auto", ALL, *timers):
            raise unknown("attnbench", "--timer", name, ["auto", ALL, *timers])
        if name in timers and device.kind not in timers[name].devices:
            works = f"it works on {' and '.join(timers[name].devices)}"
            raise Unavailable(refusal("attnbench", "--timer", name, f"does not work on {device.kind}", works))
    if not device.on_gpu and settings.l2 == "cold":
        raise Unavailable(refusal("attnbench", "--l2", "cold", "is for GPUs", "--l2 warm or auto on a CPU"))
    if not device.on_gpu and settings.lock_clocks is not None:
        raise Unavailable(
            refusal("attnbench", "--lock-clocks", settings.lock_clocks, "is for GPUs", "leave it out on a CPU")
        )
