"""Our own open-loop generator: `python -m attnbench.loadtest.issuing.schedule OUT`, the schedule on stdin.

stdin: int64 count, then as many int64 nanoseconds from the start, ascending.  Each request is issued at its time,
whatever the state of earlier ones.  The process sleeps until shortly before a deadline and then busy-waits, because
a sleep alone ends up to a tenth of a millisecond late, more on a busy machine.
"""

from __future__ import annotations

import gc
import sys
import time
from array import array

from attnbench.loadtest.issuing.wire import END, ISSUED, NUMBER, RECORD, START, write

LEAD_NS = 300_000
"Busy-waiting time before a deadline."
BEGIN_NS = 5_000_000
"Time from the start message to the origin of the schedule."


def issue(out: int, due: array[int]) -> None:
    """Issue each request at its time.

    Args:
        out: file descriptor of the pipe to the server.
        due: nanoseconds from the start, ascending.
    """
    now, pack, send = time.monotonic_ns, RECORD.pack, write
    origin = now() + BEGIN_NS
    send(out, pack(START, 0, origin))
    for number, after in enumerate(due):
        deadline = origin + after
        left = deadline - now()
        if left > LEAD_NS:
            time.sleep((left - LEAD_NS) * 1e-9)
        while (at := now()) < deadline:
            pass
        send(out, pack(number, number, at))
    send(out, pack(ISSUED, len(due), now()) + pack(END, 0, now()))


def main() -> None:
    """Read the schedule and run it."""
    source = sys.stdin.buffer
    count = NUMBER.unpack(source.read(NUMBER.size))[0]
    due = array("q", source.read(8 * count))
    gc.disable()
    try:
        issue(int(sys.argv[1]), due)
    except BrokenPipeError:
        pass  # the server is gone


if __name__ == "__main__":
    main()
