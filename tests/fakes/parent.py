"""A process that carries out a run, to be killed: `parent.py PATH`; the plan is in PATH.plan, a whole run file."""

from __future__ import annotations

import sys
from pathlib import Path

from small_runs import LEAVING, MISBEHAVING

from attnbench.store.runfile import read
from attnbench.sweep.run import execute

if __name__ == "__main__":
    path = Path(sys.argv[1])
    try:
        execute(read(path.with_suffix(".plan")), path=path, backend_files=[MISBEHAVING, LEAVING],
                on_event=lambda event: print(event.kind, event.text, flush=True))
    except KeyboardInterrupt:
        sys.exit(130)
