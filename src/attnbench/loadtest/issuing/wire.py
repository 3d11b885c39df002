"""What the generator's process and the server send each other over two pipes.

To the server: records of three int64 (number, index, monotonic nanoseconds when it was issued).  A number from 0 on is
a request, and `index` says which sample; the numbers below 0 are words.  Back go the numbers of requests that are over,
an int64 each.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

RECORD = struct.Struct("<qqq")
NUMBER = struct.Struct("<q")
START, ISSUED, END = -1, -2, -3
"The load begins (its time is the origin of the schedule) · no request will follow · the generator is done."
PIPE_BYTES = 1 << 20
"Asked for: 43,000 records wait in the pipe while the server is busy."


def write(handle: int, data: bytes) -> None:
    """Write all of it; waits while the pipe is full."""
    while data:
        data = data[os.write(handle, data) :]


def pack(records: Iterable[tuple[int, int, int]]) -> bytes:
    """Records as bytes."""
    return b"".join(RECORD.pack(*one) for one in records)


def unpack(data: bytes) -> tuple[list[tuple[int, int, int]], bytes]:
    """Whole records, and what is left of the last one."""
    whole = len(data) - len(data) % RECORD.size
    return list(RECORD.iter_unpack(data[:whole])), data[whole:]
