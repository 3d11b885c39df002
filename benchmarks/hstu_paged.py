"""Paged HSTU attention beside the contiguous kernel on the same tokens, and split keys: GPU time of a layer in a graph.

Each row is a group of `attnbench.compare`: CUDA graphs of eight layers, replayed in turn.  Every layer has keys and
values of its own, so that none finds the last one's in the L2.  Pages lie in random order in the pool, and beside that
sorted.  A line says time, useful TFLOP/s and the ratio to the group's first; at the end, what of the bars is met.

    python benchmarks/hstu_paged.py --out benchmarks/results/hstu-paged-h200.json
    python benchmarks/hstu_paged.py --rows 1x128 --max-seconds 0.5 --out /tmp/hstu-paged.json

All rows are compiled first, each in a process of its own: one after another that took longer than measuring.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnbench
from attnbench.machine.devices import resolve
from attnbench.machine.fingerprint import environment
from attnbench.record import to_dict

if TYPE_CHECKING:
    from torch import Tensor

LAYERS, CACHED, NEW, HEADS = 8, 4096, 256, 4


@dataclass(frozen=True)
class Row:
    """A shape: users, candidates of each, dims, and the page sizes measured."""

    batch: int
    targets: int
    dim: int
    pages: tuple[int, ...] = (64, 128)

    @property
    def name(self) -> str:
        """Such as 8x1024-d256."""
        return f"{self.batch}x{self.targets}-d{self.dim}"

    @property
    def flops(self) -> int:
        """Of a layer: 4 D a visible pair and head."""
        pairs = NEW * CACHED + NEW * (NEW + 1) // 2 + self.targets * (CACHED + NEW + 1)
        return 4 * HEADS * self.dim * pairs * self.batch


ROWS = (
    Row(8, 1024, 256, (32, 64, 128)),
    Row(1, 128, 256),
    Row(1, 128, 128),
    Row(8, 128, 256),
    Row(2, 128, 128, ()),
    Row(4, 128, 128, ()),
    Row(8, 128, 128, ()),
    Row(2, 128, 256, ()),
    Row(4, 128, 256, ()),
)


@dataclass(frozen=True)
class Bar:
    """What a row has to reach: of one kernel's time (µs, at most), rate, or ratio to another (at least)."""

    row: str
    kernel: str
    what: str
    least: float
    aim: float
    over: str = ""

    def line(self, us: Mapping[str, float], tflops: Mapping[str, float]) -> str:
        """What came of it."""
        if self.kernel not in us:
            return f"{self.row} {self.kernel}: not measured"
        found = {
            "us": us[self.kernel],
            "tflops": tflops[self.kernel],
            "ratio": us.get(self.over, 0.0) / us[self.kernel],
        }[self.what]
        better = (lambda limit: found <= limit) if self.what == "us" else (lambda limit: found >= limit)
        word = "aim reached" if better(self.aim) else "bar reached" if better(self.least) else "BELOW THE BAR"
        of = f" of {self.over}" if self.over else ""
        return f"{self.row} {self.kernel}: {found:.4g} {self.what}{of}; bar {self.least:g}, aim {self.aim:g}: {word}"


BARS = (
    *(Bar("8x1024-d256", f"paged-{page}", "tflops", 450, 600) for page in (64, 128)),
    *(
        Bar(row, f"paged-{page}", "ratio", 0.85, 0.95, "contiguous")
        for row in ("8x1024-d256", "8x128-d256")
        for page in (64, 128)
    ),
    *(Bar("8x1024-d256", f"paged-{page}", "ratio", 0.97, 0.99, f"paged-{page}-sorted") for page in (32, 64, 128)),
    *(
        Bar(f"1x128-d{dim}", kernel, "us", 25, 15)
        for dim in (256, 128)
        for kernel in ("contiguous", "paged-64", "paged-128")
    ),
)


class Layers:
    """Tensors of one row: contiguous keys of each layer, and the same tokens in pools of pages."""

    def __init__(self, row: Row, layers: int = LAYERS) -> None:
        """Draw them on the card."""
        import torch

        self.row, self.layers, self.made = row, layers, torch.Generator(device="cuda").manual_seed(1)
        new, rows = NEW + row.targets, CACHED + NEW + row.targets
        self.new = self._draw(3, row.batch * new)
        self.keys = self._draw(2, row.batch * rows)
        for index in range(2):  # the step's own keys are the last of each sequence
            for layer in range(layers):
                self.keys[layer][index].view(row.batch, rows, HEADS, row.dim)[:, CACHED:] = self.new[layer][
                    1 + index
                ].view(row.batch, new, HEADS, row.dim)
        self.offsets = self._steps(rows)
        self.offsets_q = self._steps(new)
        self.targets = torch.full((row.batch,), row.targets, dtype=torch.int32, device="cuda")

    def _draw(self, count: int, rows: int) -> list[Tensor]:
        import torch

        return [
            torch.randn(count, rows, HEADS, self.row.dim, generator=self.made, device="cuda").to(torch.bfloat16)
            for _ in range(self.layers)
        ]

    def _steps(self, length: int) -> Tensor:
        import torch

        return torch.arange(self.row.batch + 1, dtype=torch.int32, device="cuda") * length

    def contiguous(self, **changes: Any) -> Callable[[int], Tensor]:
        """The dense kernel on one layer, its default with changes."""
        from dataclasses import replace

        from attnbench.kernels.hstu.dense.api import default_forward, hstu_attention

        def call(layer: int) -> Tensor:
            q, (k, v) = self.new[layer][0], self.keys[layer]
            config = replace(default_forward(q, k, v, CACHED + NEW + self.row.targets), **changes)
            return hstu_attention(
                q,
                k,
                v,
                self.offsets,
                CACHED + NEW + self.row.targets,
                offsets_q=self.offsets_q,
                max_seqlen_q=NEW + self.row.targets,
                num_targets=self.targets,
                scaling_seqlen=CACHED,
                forward=config,
            )

        return call

    def paged(self, page: int, *, order: str = "random", **given: Any) -> Callable[[int], Tensor]:
        """The paged kernel on one layer."""
        import torch

        from attnbench.kernels.hstu.paged.api import Step, hstu_paged_attention

        batch, held = self.row.batch, (CACHED + NEW) // page
        pages = batch * held
        table = (
            torch.randperm(pages, generator=self.made, device="cuda")
            if order == "random"
            else torch.arange(pages, device="cuda")
        ).to(torch.int32)
        pools = []
        for keys in self.keys:
            tokens = keys.view(2, batch, -1, HEADS, self.row.dim)[:, :, : CACHED + NEW]
            pool = torch.empty(pages, 2, page, HEADS, self.row.dim, dtype=torch.bfloat16, device="cuda")
            pool[table.long()] = tokens.reshape(2, pages, page, HEADS, self.row.dim).transpose(0, 1)
            pools.append(pool)
        step = Step(
            offsets=self.offsets_q,
            cached=torch.full((batch,), CACHED, dtype=torch.int32, device="cuda"),
            indptr=self._steps(held),
            indices=table,
            num_targets=self.targets,
            max_new=NEW + self.row.targets,
            max_cached=CACHED,
        )

        def call(layer: int) -> Tensor:
            return hstu_paged_attention(*self.new[layer], pools[layer], step, scaling_seqlen=CACHED, **given)

        return call


def captured(call: Callable[[int], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """A graph of all layers, replayed by a call, and the output of the last layer."""
    import torch

    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [call(layer) for layer in range(LAYERS)]
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay, outs[-1]


def kernels_of(row: Row, layers_count: int = LAYERS) -> dict[str, Callable[[int], Tensor]]:
    """What is measured for a row, by name; all compute the same."""
    layers = Layers(row, layers_count)
    found = {"contiguous": layers.contiguous()}
    if row.batch * row.targets <= 8 * 128:
        found["contiguous-whole"] = layers.contiguous(parts=1)
    for page in row.pages:
        found[f"paged-{page}"] = layers.paged(page)
        if row.targets == 1024:
            found[f"paged-{page}-sorted"] = layers.paged(page, order="sorted")
    return found


def compile_only(row: Row) -> None:
    """Call everything of a row once: what it compiles stays in Triton's cache."""
    import torch

    for call in kernels_of(row, 1).values():
        call(0)
    torch.cuda.synchronize()


def compile_ahead(rows: Sequence[Row]) -> None:
    """Compile all rows at a time; one that fails does so again where it is measured."""
    command = [sys.executable, __file__, "--out", "-", "--compile-only", "--rows"]
    for process in [subprocess.Popen([*command, row.name]) for row in rows]:
        process.wait()


def measured(row: Row, calls: Mapping[str, Callable[[int], Tensor]], max_seconds: float) -> dict[str, Any]:
    """One row as it came out.

    Raises:
        RuntimeError: two kernels give different outputs.
    """
    replays, outs = {}, {}
    for name, call in calls.items():
        replays[name], outs[name] = captured(call)
    first = outs["contiguous"].float()
    for name, out in outs.items():
        off = (out.float() - first).abs().max() / first.abs().max()
        if not off < 0.01:
            raise RuntimeError(f"{row.name} {name}: differs from contiguous by {off:.2g} of the largest value")
    found = attnbench.compare(replays, timer="events", l2="warm", rel_ci=0.005, max_seconds=max_seconds)
    samples = {name: [ms * 1e3 / LAYERS for ms in timing.time.samples_ms] for name, timing in found.timings.items()}
    us = {name: timing.median_ms * 1e3 / LAYERS for name, timing in found.timings.items()}
    return {
        "row": row.name,
        "us": us,
        "tflops": {name: row.flops / one / 1e6 for name, one in us.items()},
        "ratios": {name: [one.ratio, one.ci_low, one.ci_high] for name, one in found.speedups.items()},
        "samples_us": samples,
    }


def main() -> int:
    """Measure, print, write the samples, and say what of the bars is met."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default="", help="comma list of beginnings of names, as 8x1024 or 1x128-d256")
    parser.add_argument("--max-seconds", type=float, default=1.5, help="of sampling, a row")
    parser.add_argument("--compile-only", action="store_true", help="measure nothing")
    args = parser.parse_args()
    wanted = [row for row in ROWS if any(row.name.startswith(part) for part in args.rows.split(","))]
    if not wanted or not torch.cuda.is_available():
        parser.error(f"--rows={args.rows}: one of {', '.join(row.name for row in ROWS)}, on a CUDA device")
    if args.compile_only:
        for row in wanted:
            compile_only(row)
        return 0
    begun = time.perf_counter()
    compile_ahead(wanted)
    print(f"compiled in {time.perf_counter() - begun:.1f} s", flush=True)
    found: dict[str, Any] = {"environment": to_dict(environment(resolve("cuda"))), "layers": LAYERS, "rows": []}
    rows: list[dict[str, Any]] = found["rows"]
    for row in wanted:
        begun = time.perf_counter()
        rows.append(measured(row, kernels_of(row), args.max_seconds))
        for name, one in rows[-1]["us"].items():
            ratio = rows[-1]["ratios"].get(name, [1.0])[0]
            print(f"{row.name} {name}: {one:.2f} us, {rows[-1]['tflops'][name]:.0f} TFLOP/s, {ratio:.3f}x", flush=True)
        print(f"  in {time.perf_counter() - begun:.1f} s", flush=True)
        args.out.write_text(json.dumps(found) + "\n")
    by_name = {row["row"]: row for row in rows}
    for bar in BARS:
        if bar.row in by_name:
            print(bar.line(by_name[bar.row]["us"], by_name[bar.row]["tflops"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
