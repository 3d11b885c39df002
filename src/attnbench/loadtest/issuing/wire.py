"""Messages between the generator's process and the server, over two pipes.

To the server: records of three int64 (number, index, monotonic nanoseconds of issue).  A number from 0 on is
a request, and `index` its sample; negative numbers are events.  From the server: the numbers of finished requests,
an int64 each.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

RECORD = struct.Struct("<qqq")
NUMBER = struct.Struct("<q")
START, ISSUED, END = -1, -2, -3
"Events: the load starts (its time is the origin of the schedule); no request will follow; the generator is done."
PIPE_BYTES = 1 << 20
"Requested capacity of the pipe: 43,000 records can wait while the server is busy."


def write(handle: int, data: bytes) -> None:
    """Write all data; waits while the pipe is full."""
    while data:
        data = data[os.write(handle, data) :]


def pack(records: Iterable[tuple[int, int, int]]) -> bytes:
    """Convert records to bytes."""
    return b"".join(RECORD.pack(*one) for one in records)


def unpack(data: bytes) -> tuple[list[tuple[int, int, int]], bytes]:
    """Return the complete records, and the rest of an incomplete one."""
    whole = len(data) - len(data) % RECORD.size
    return list(RECORD.iter_unpack(data[:whole])), data[whole:]
