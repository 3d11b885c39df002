"""What the HTML report of a large run costs: 400 cases x 5 backends x 100 samples, built and opened.

    python benchmarks/report.py --out benchmarks/results/report.json [--repeats N]

Built: the whole process of `attnbench report`, from its start to its exit, reading the run file included; and its
CPU time, which other work on the machine does not stretch.
Opened: from the call to a new browser context until a first sort of the table of all rows, clicked as soon as there
is a heading to click, has been painted.  Sorted: from the click until the next frame has been painted; every column,
up, down and back.  The run is made up; nothing is measured by it.

On a machine that does other work too, `chrt --rr 1` before the command (as root) puts it ahead of that, and the file
says so.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from attnbench.machine.device import CPU
from attnbench.machine.fingerprint import environment
from attnbench.record import Run, to_dict
from attnbench.store.runfile import write

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
SORT = """async (index) => {
  const button = document.querySelectorAll("#all-rows thead button")[index], started = performance.now();
  button.click();
  await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)));
  return performance.now() - started;
}"""


def made_up() -> Run:
    """A run of 2,000 records, of which nobody measured one."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from made_up_run import make_case, make_group, make_run

    cases = [make_case(batch=batch, seqlen=seqlen, seqlen_k=seqlen, headdim=headdim, headdim_v=headdim, causal=causal,
                       dtype=dtype)
             for batch in (1, 2, 4, 8, 16) for seqlen in (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
             for headdim in (64, 128) for causal in (False, True) for dtype in ("bf16", "fp16")]  # fmt: skip
    return make_run([record for case in cases for record in make_group(case, samples=100)])


def built(run_file: Path, page: Path) -> tuple[float, float]:
    """Seconds of the command, by the clock and of the CPU."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "attnbench", "report", run_file, "--html", page], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def opened(page: Path, repeats: int) -> dict[str, object]:
    """Seconds until the first sort is painted, and milliseconds of every further one."""
    from playwright.sync_api import sync_playwright

    interactive, sorts = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        for _ in range(repeats):
            context = browser.new_context(viewport={"width": 1280, "height": 800}, offline=True)
            tab = context.new_page()
            started = time.perf_counter()
            tab.goto(page.as_uri(), wait_until="commit")
            tab.wait_for_selector("#all-rows thead button", state="attached")
            tab.evaluate(SORT, 0)
            interactive.append(time.perf_counter() - started)
            tab.evaluate("document.getElementById('rows').scrollIntoView({behavior: 'instant'})")
            tab.wait_for_timeout(3000)
            for column in range(tab.locator("#all-rows thead button").count()):
                sorts += [tab.evaluate(SORT, column) for _ in range(3)]
            context.close()
        found = {"interactive_s": interactive, "sort_ms": sorts, "chromium": browser.version}
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_file, page = Path(folder) / "run.json", Path(folder) / "run.html"
        run = made_up()
        write(run, run_file)
        seconds, cpu_seconds = zip(*(built(run_file, page) for _ in range(args.repeats)), strict=True)
        result = {
            "environment": to_dict(environment(CPU)), "load": os.getloadavg()[0],
            "ahead_of_others": os.sched_getscheduler(0) != os.SCHED_OTHER,
            "libraries": {name: version(name) for name in ("altair", "vl-convert-python", "playwright")},
            "records": len(run.records), "samples": 100, "run_file_mb": run_file.stat().st_size / 1e6,
            "built_s": seconds, "built_cpu_s": cpu_seconds, "page_mb": page.stat().st_size / 1e6,
            **opened(page, args.repeats),
        }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"built {statistics.median(seconds):.2f} s ({statistics.median(cpu_seconds):.2f} s of CPU), "
        f"{result['page_mb']:.2f} MB, first sort answered after "
        f"{statistics.median(result['interactive_s']):.2f} s, sort {statistics.median(result['sort_ms']):.0f} ms "
        f"(worst {max(result['sort_ms']):.0f} ms), load {result['load']:.1f}"
    )


if __name__ == "__main__":
    main()
