"""Exports of older scripts with arbitrary content, imported."""

from __future__ import annotations

import dataclasses
import json

from attack import TEXTS, bytes_spoilt, dumps, spoilt

from attnbench.formats.layouts import layout_names, load_layout
from made_up_run import make_case, make_group, make_run

HSTU = {"batch": 2, "seqlen": 1024, "nheads": 4, "attn_dim": 128, "linear_dim": 128, "block_size": 32,
        "block_counts": 4}  # fmt: skip
FIGURES = ["0", "-1", "1e999", "nan", "inf", "-", "", "9" * 400, "1e-320", "1,5", "0x1", "١", "1_0", "1e308", "2.5x"]


def files(folder):
    """What the three scripts leave, by name."""
    run = make_run(make_group(make_case(seqlen=1024), {"flash-attn-2": 400.0, "flash-attn-3": 600.0, "eager": 10.0}))
    dense = [
        dataclasses.replace(item, workload="hstu", case=HSTU, backend=name)
        for item, name in zip(run.records, ("hstu-triton", "hstu-bsa-triton"), strict=False)
    ]
    load_layout("seed-000").write(make_run(dense), folder / "benchmark_results.json")
    load_layout("seed-001").write(run, folder / "sweep.csv")
    load_layout("seed-004").write(run, folder / "comparison_results.txt")
    one = make_run(list(run.records[:1]))
    load_layout("seed-004").write(one, folder / "results.json")
    load_layout("seed-004").write(one, folder / "baseline_benchmark.txt")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def with_figures(text, source):
    """Words of a text replaced by figures that are none."""
    words = text.split(" " if source.random() < 0.5 else ",")
    for _ in range(source.choice((1, 2, 5))):
        words[source.randrange(len(words))] = source.choice(FIGURES + TEXTS)
    return (" " if " " in text and "," not in text else ",").join(words)


def test_layouts(attack):
    whole = files(attack.folder)
    assert len(whole) == 5
    for source in attack.seeds():
        name = source.choice(sorted(whole))
        data, kind = whole[name], source.random()
        if name.endswith(".json") and kind < 0.7:
            data = dumps(spoilt(json.loads(data), source)).encode()
        elif kind < 0.6:
            data = with_figures(data.decode(), source).encode("utf-8", "surrogatepass")
        else:
            data = bytes_spoilt(data, source)
        (attack.folder / name).write_bytes(data)
        layout = ["--layout", source.choice(layout_names())] if source.random() < 0.3 else []
        told = repr(data[:400])
        attack.call(["import", name, *layout, "--md", "-", "--no-save"], told)
        attack.call(["import", source.choice((name, ".")), *layout, "--json", "again.json"], told)
