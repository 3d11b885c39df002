"""The guardian of locked clocks: ``python -m attnbench.machine.clock_guard PARENT UUID SM [MEM]``.

A process of its own session, so that neither Ctrl-C nor the death of its parent ends it.  It locks
the clocks, says so in one line of JSON, waits until the parent lets go of its pipe or is gone, gives
the clocks back, and ends.  There is one place that locks and unlocks, and no way out that skips it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import Any

from attnbench.errors import Unavailable
from attnbench.machine.nvml import Gpu

LOOK_S = 0.25
"""How often the parent's life is looked at: a forked child may hold the pipe open after its death."""


def main(arguments: list[str]) -> int:
    """Lock, wait, reset.

    Returns:
        0 when the clocks were given back, 1 when they could not be locked, 2 when they could not be reset.
    """
    parent, uuid, *clocks = arguments
    sm_mhz, mem_mhz = int(clocks[0]), int(clocks[1]) if len(clocks) > 1 else None
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        gpu = Gpu.by_uuid(uuid)
    except Unavailable as error:
        _send({"error": "unavailable", "reason": str(error)})
        return 1
    try:
        gpu.lock_clocks(sm_mhz, mem_mhz)
        _send({"locked": [sm_mhz, mem_mhz]})
        _wait(int(parent))
        return 0
    except PermissionError as error:
        _send({"error": "permission", "reason": str(error)})
        return 1
    except Unavailable as error:
        _send({"error": "unavailable", "reason": str(error)})
        return 1
    finally:
        _reset(gpu, memory=mem_mhz is not None)


def _reset(gpu: Gpu, *, memory: bool) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        gpu.reset_clocks(memory=memory)
    except PermissionError:  # it could not lock them either
        pass
    except Unavailable as error:
        _send({"error": "reset", "reason": str(error)})
        raise SystemExit(2) from None


def _wait(parent: int) -> None:
    """Return when the parent lets go of the pipe or is gone."""
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], LOOK_S)[0]:
            return


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _send(message: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except OSError:  # the parent is gone: nobody listens, the clocks still go back
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
