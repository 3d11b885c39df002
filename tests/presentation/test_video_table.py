"""The tables of denoising steps: attention as timed in place, and nothing about unknown values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnbench.formats.layouts.base import imported_time
from attnbench.presentation.remarks import own_notes
from attnbench.presentation.video import attention_share, video
from attnbench.record import Record, Speedup, Status


def record(backend, step, attention=None, copies=None, **counters):
    phases = {
        name: imported_time(mean_ms=ms, median_ms=ms)
        for name, ms in (("attention", attention), ("copies", copies))
        if ms is not None
    }
    return Record(
        workload="video",
        case={},
        case_id="c",
        group="c",
        backend=backend,
        status=Status.PASSED,
        time=imported_time(mean_ms=step, median_ms=step),
        phases=phases,
        counters={"denoising_steps": 1, **counters},
    )


BASE = record(
    "video[sdpa]", 500.0, 300.0, generation_s=26.0, decode_s=2.0, attention_calls=1500, generation_peak_mb=20480
)
FAST = replace(
    record("video[flash-triton]", 452.0, 250.0, latents_rel_l1_1=1e-4, latents_rel_l1_50=2e-2, latents_cosine_50=0.999),
    speedup=Speedup(baseline="video[sdpa]", ratio=1.12),
)
COPYING = record("video[flex]", 700.0, 400.0, 50.0, graph_breaks=30)


def cells(block, row):
    return {column.title: block.lines[row].cells.get(column.key, "") for column in block.columns}


def test_the_share_of_attention_counts_its_copies():
    assert attention_share(BASE) == pytest.approx(0.6)
    assert attention_share(COPYING) == pytest.approx(450 / 700)
    assert attention_share(record("x", 1.0)) is None


def test_the_table_says_steps_generations_and_distances():
    steps, latents = video("title", [BASE, FAST, COPYING], "video[sdpa]")
    assert cells(steps, 0) == {
        "denoising step, ms": "video[sdpa]",
        "step": "500",
        "attention": "300",
        "attention %": "60",
        "measured x": "",
        "without it": "2.50x",
        "generation s": "26.0",
        "VAE s": "2.00",
        "peak GiB": "20.0",
        "calls": "1500",
        "graph breaks": "",
    }
    assert cells(steps, 1)["measured x"] == "1.12x", "the median of the ratios within rounds, as in the first table"
    assert "measured x" not in cells(video("title", [BASE, FAST], "video[flex]")[0], 1)
    assert (cells(steps, 2)["attention"], cells(steps, 2)["graph breaks"]) == ("450", "30")
    assert [line.record.backend for line in latents.lines] == ["video[flash-triton]"]
    assert cells(latents, 0) == {
        "latents, relative L1 after step": "video[flash-triton]",
        "1": "1.0e-04",
        "50": "2.0e-02",
        "cosine at the end": "0.999000",
    }


def test_sparsity_predicted_from_random_weights_is_never_shown_without_these_words():
    given = record("video[flash-sparse]", 300.0, 150.0, actual_sparsity=0.5)
    chosen = record("video[flash-sparse:cdf0.98]", 310.0, 160.0, actual_sparsity=0.04, maps_predicted=30)
    true = replace(chosen, case={"weights": "mine@12345678"})
    (steps,) = video("title", [BASE, given, chosen, true], "video[sdpa]")[:1]
    assert cells(steps, 1)["sparsity %"] == "50.0"
    assert cells(steps, 2)["predicted sparsity %, random weights"] == "4.00"
    assert cells(steps, 2)["predicted sparsity %"] == ""
    assert cells(steps, 3)["predicted sparsity %"] == "4.00"


def test_attention_that_took_longer_than_its_step_has_no_share():
    late = record("video[eager]", 10.0, 70.0)
    (steps,) = video("title", [BASE, late], "video[sdpa]")
    assert attention_share(late) is None
    assert (cells(steps, 1)["attention %"], cells(steps, 1)["without it"]) == ("", "")
    assert cells(steps, 1)["attention"] == "70.0"
    (note,) = steps.notes
    assert note.startswith("no share: video[eager]: attention took longer than the whole step")


def test_a_note_of_several_rows_is_said_once():
    rows = [replace(BASE, notes=("random weights",)), replace(FAST, notes=("random weights", "copied"))]
    assert list(own_notes(rows)) == ["video[sdpa], video[flash-triton]: random weights", "video[flash-triton]: copied"]


def test_of_other_rows_nothing_is_said():
    assert (
        video(
            "title",
            [
                Record(
                    workload="attention",
                    case={},
                    case_id="c",
                    group="c",
                    backend="sdpa",
                    status=Status.PASSED,
                    time=imported_time(mean_ms=1, median_ms=1),
                )
            ],
            None,
        )
        == []
    )
    (alone,) = video("title", [record("video[sdpa]", 500.0)], None)
    assert cells(alone, 0) == {"denoising step, ms": "video[sdpa]", "step": "500"}
