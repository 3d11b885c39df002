"""A process that carries out a run, to be killed: `parent.py PATH SAID COUNT`; the plan is in PATH.plan, a run file.

Once it has said SAID so many times it holds still, until a signal comes; what its worker does goes on.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from small_runs import LEAVING, MISBEHAVING

from attnbench.store.runfile import read
from attnbench.sweep.run import Event, execute

if __name__ == "__main__":
    path, last, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

    def on_event(event: Event) -> None:
        global left
        said = f"{event.kind} {event.text}".strip()
        print(said, flush=True)
        left -= said == last
        while said == last and left == 0:
            signal.pause()

    try:
        execute(read(path.with_suffix(".plan")), path=path, backend_files=[MISBEHAVING, LEAVING], on_event=on_event)
    except KeyboardInterrupt:
        sys.exit(130)
