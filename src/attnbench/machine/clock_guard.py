"""The guardian process of locked clocks: ``python -m attnbench.machine.clock_guard PARENT UUID SM [MEM]``.

It runs in a session of its own, so that neither Ctrl-C nor the death of its parent ends it.  It locks the clocks,
reports that in one line of JSON, waits until the parent closes its pipe or is gone, resets the clocks, and exits.  Only
this process locks and resets clocks, and no exit path skips the reset.
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
"""How often the parent is checked: after its death a forked child may hold the pipe open."""


def main(arguments: list[str]) -> int:
    """Lock, wait, reset.

    Returns:
        0 if the clocks were reset, 1 if they could not be locked, 2 if they could not be reset.
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
    """Return when the parent closes the pipe or is gone."""
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], LOOK_S)[0]:
            return


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _send(message: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except OSError:  # the parent is gone; the clocks must still be reset
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
