"""`python -m attnbench.worker DEVICE PAGE-FD READ-FD WRITE-FD`; started only by `worker.process`."""

from __future__ import annotations

import sys

from attnbench.worker.serve import serve

if __name__ == "__main__":
    device, *handles = sys.argv[1:]
    sys.exit(serve(device, *map(int, handles)))
