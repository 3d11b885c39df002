"""`python -m attnbench.worker DEVICE BLAME-PAGE READ-FD WRITE-FD`: started by `worker.process` only."""

from __future__ import annotations

import sys

from attnbench.worker.serve import serve

if __name__ == "__main__":
    device, page, read_fd, write_fd = sys.argv[1:5]
    sys.exit(serve(device, page, int(read_fd), int(write_fd)))
