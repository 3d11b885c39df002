"""Charts of the docs, drawn from committed results as `attnbench report RUN --plots DIR` draws them.

    python benchmarks/pictures.py [--folder docs/images]

Look at each picture before it is committed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from attnbench.report.charts.base.by_axis import figures_over
from attnbench.report.charts.base.figure import Figure
from attnbench.report.load_chart import figure
from attnbench.report.plots import picture
from attnbench.store import load_file, runfile

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
LOADS = {"load-bench": "load-bench-h200.json"}
STEPS = {
    f"serving-cached-{batch}x{candidates}": f"time_ms_cached_batch{batch}_num_candidates{candidates}"
    for batch, candidates in ((8, 1024), (1, 128))
}
"Pictures of the sweep, and the names of their figures."
DENSITIES = {"sparse-density": "time_ms_density_seq32768_causal_false_patternrandom"}
"The same of the suite `sparse`."


def drawn() -> Iterator[tuple[str, Figure]]:
    """Name and figure of each picture."""
    over = {
        one.name: one for one in figures_over([runfile.read(RESULTS / "hstu-serving-h200.json")], "cached", "time_ms")
    }
    for name, of in STEPS.items():
        yield name, over[of]
    maps = {one.name: one for one in figures_over([runfile.read(RESULTS / "sparse-h200.json")], "density", "time_ms")}
    for name, of in DENSITIES.items():
        yield name, maps[of]
    for name, file in LOADS.items():
        found = figure(load_file.read(RESULTS / file))
        assert found is not None, f"{file} has no rate"
        yield name, found


def main() -> None:
    """Write ``<name>.svg`` for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs/images")
    folder = parser.parse_args().folder
    for name, one in drawn():
        (folder / f"{name}.svg").write_bytes(picture(one, "svg"))


if __name__ == "__main__":
    main()
