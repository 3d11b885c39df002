"""The benchmark of the video rows: our loop against the pipeline's, comparison of runs, and the targets."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.made_up_run import make_case, make_record, make_run, make_time

from attnbench.record import Speedup
from attnbench.store.runfile import write

ROOT = Path(__file__).resolve().parents[2]


def loaded(name, patch):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def targets():
    with pytest.MonkeyPatch.context() as patch:
        yield loaded("video_targets", patch)


@pytest.fixture(scope="module")
def video(targets):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield loaded("video", patch)


CASE = {"model": "cogvideox-2b", "steps": 10, "density": 0.5}
STEPS = {"sdpa": 500.0, "sdpa-flash": 680.0, "flash-triton": 452.0, "flash-quant": 430.0, "flash-sparse": 350.0}
ATTENTION = {"sdpa": 290.0, "sdpa-flash": 470.0, "flash-triton": 242.0, "flash-quant": 220.0, "flash-sparse": 140.0}
COUNTERS = {
    "denoising_steps": 1,
    "layers": 30,
    "attention_calls": 300,
    "generation_peak_mb": 20480.0,
    "graph_breaks": 0,
    "recompiles": 0,
    "latents_crc32": 7,
}


def made(steps=STEPS, attention=ATTENTION, case=CASE, mhz=None, **counters):
    """A run of rows whose steps take so long, and the attention in them; `mhz` of rows whose SM clock is not 1500."""
    records = []
    for name, ms in steps.items():
        one = make_record(make_case(), f"video[{name}]", tflops=500.0)
        known = {"sm_mhz": ((mhz or {}).get(name, 1500.0),) * 12}
        phases = {
            "attention": make_time([attention[name]] * 12, **known),
            "attention alone": make_time([attention[name] / 30] * 12, **known),
        }
        speedup = None if name == "sdpa" else Speedup(baseline="video[sdpa]", ratio=steps["sdpa"] / ms)
        records.append(
            replace(
                one,
                workload="video",
                case=case,
                config=name,
                time=make_time([ms] * 12, **known),
                phases=phases,
                counters=COUNTERS | counters,
                speedup=speedup,
            )
        )
    run = make_run(records)
    return replace(run, settings=replace(run.settings, baseline="video[sdpa]"))


def found(targets, tmp_path, **files):
    for name, content in files.items():
        path = tmp_path / f"video-{name}-h200.json"
        path.write_text(json.dumps(content)) if isinstance(content, dict) else write(content, path)
    return {one.what: one for one in targets.findings(tmp_path)}


def test_what_was_promised_is_read_out_of_a_run(targets, tmp_path):
    one = found(targets, tmp_path, eager=made())
    speed = one["eager: flash-triton over sdpa-flash"]
    assert (speed.text, speed.wanted, speed.met, speed.aimed) == ("1.504x", "at least 1.3x", True, True)
    assert one["eager: flash-triton over sdpa"].text == "1.106x"
    assert one["eager: flash-quant over flash-triton"].aimed is False
    assert one["eager: flash-sparse, density 0.5 over flash-triton"].text == "1.291x"
    for what in (
        "in place against alone, cycles",
        "measured against predicted, cycles",
        "measured against predicted, time",
        "unexplained, of a step",
        "memory of a generation",
        "calls of the attention",
        "graph breaks and recompilations of ours",
    ):
        assert one[f"eager: {what}"].met, what
    assert not any(what.startswith(("compiled", "two runs")) for what in one)


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"steps": STEPS | {"flash-triton": 480.0}}, "flash-triton over sdpa"),
        ({"steps": STEPS | {"flash-triton": 480.0}}, "measured against predicted, time"),
        ({"steps": STEPS | {"sdpa-flash": 665.0}}, "unexplained, of a step"),
        ({"generation_peak_mb": 41000.0}, "memory of a generation"),
        ({"attention_calls": 299}, "calls of the attention"),
        ({"recompiles": 1}, "graph breaks and recompilations of ours"),
    ],
    ids=str,
)
def test_what_is_missed_is_said(targets, tmp_path, changed, missed):
    one = found(targets, tmp_path, compiled=made(**changed))
    assert not one[f"compiled: {missed}"].met
    assert any(line.startswith("MISSED") and missed in line for line in targets.lines(tmp_path))


def test_a_sparse_row_of_another_density_is_not_held_against_the_bar(targets, tmp_path):
    one = found(targets, tmp_path, eager=made(case=CASE | {"density": 0.2}), sparse=made(case=CASE | {"density": 0.2}))
    assert not any("density" in what for what in one if what.startswith("eager"))
    assert one["sparse: flash-sparse, density 0.2 over flash-triton"].wanted == "at least 1.4x"


def test_wall_time_and_loop_are_read(targets, tmp_path):
    ratios = {"bare over pipeline": 0.995, "loop over pipeline": 0.97, "launch over loop": 1.03}
    ratios = {name: {"ratio": ratio} for name, ratio in ratios.items()}
    one = found(
        targets, tmp_path, compiled=made(), seconds={"video-compiled-h200.json": 400.0}, loop={"ratios": ratios}
    )
    assert one["wall time, compiled"].met
    assert one["our loop against the pipeline's"].met
    assert one["the same with the attention of row sdpa"].met
    assert not one["harness, of a step"].met


def test_two_runs_are_held_together(video, targets, tmp_path):
    other = made(steps=STEPS | {"flash-triton": 453.0}, latents_crc32=8)
    repeated = video.repeats(made(), other)
    (ours,) = [row for row in repeated["rows"] if row["backend"] == "video[flash-triton]"]
    assert ours["ratio"] == pytest.approx(452 / 453)
    assert not ours["same_latents"]
    one = found(targets, tmp_path, repeats=repeated)
    ratios = {unit: f"two runs: ratios of steps, in {unit}" for unit in ("time", "cycles")}
    assert not one[ratios["time"]].met
    assert not one[ratios["cycles"]].met
    assert one["two runs: latents of exact rows"].text == "0 of 3 rows"
    one = found(targets, tmp_path, repeats=video.repeats(made(), made()))
    assert one[ratios["time"]].met
    assert one[ratios["cycles"]].met


def test_two_runs_agree_in_cycles_if_only_the_clock_differs(video, targets, tmp_path):
    slower = made(steps=STEPS | {"flash-triton": 453.0}, mhz={"flash-triton": 1500 * 452 / 453})
    one = found(targets, tmp_path, repeats=video.repeats(made(), slower))
    assert not one["two runs: ratios of steps, in time"].met
    assert one["two runs: ratios of steps, in cycles"].met


def test_rows_without_a_common_baseline_are_refused(video):
    with pytest.raises(SystemExit, match="no row in common"):
        video.repeats(made(), make_run())


def test_without_files_the_names_of_those_wanted_are_said(targets, tmp_path):
    (line,) = targets.lines(tmp_path)
    assert "video-eager-h200.json" in line


def test_a_capture_of_a_generation_has_categories(targets, tmp_path):
    capture = ROOT / "tests/profile/captures/video-sdpa-h200.json"
    one = found(targets, tmp_path, captures=json.loads(capture.read_text("utf-8")))
    assert list(one) == ["kernel time with a category"]
    assert one["kernel time with a category"].met


def test_the_docs_tables_are_made_of_these_files(targets):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        assert sorted(loaded("tables", patch).VIDEO) == sorted(targets.FILES)


def small():
    return ["--model", "tiny", "--dtype", "fp32", "--device", "cpu", "--steps", "1", "--rounds", "1"]


def test_our_loop_the_bare_one_and_the_launch_take_the_same_steps(video, tmp_path, monkeypatch):
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    import torch

    taken = {}

    def pipeline(case, inputs):
        theirs, _ = inputs.denoiser(video._torchs)

        def generate():
            one = theirs.generate(case.steps, inputs.latents, inputs.embeds, decode=False)
            taken["latents"] = one.latents
            return one.total_s, one.latents

        return generate

    monkeypatch.setattr(video, "pipeline_of", pipeline)
    path = tmp_path / "loop.json"
    assert video.main(["loop", *small(), "--out", str(path)]) == 0
    data = json.loads(path.read_text())
    assert set(data["seconds"]) == {"pipeline", "loop", "bare", "launch"}
    assert set(data["ratios"]) == {"bare over pipeline", "loop over pipeline", "launch over loop", "loop over bare"}
    assert all(distance < 1e-6 for distance in data["latents_rel_l1"].values())
    assert torch.isfinite(taken["latents"]).all()


def test_the_pipeline_of_diffusers_takes_the_same_steps(video, tmp_path):
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    pytest.importorskip("transformers", reason="transformers is not installed; the pipeline's class needs it")
    path = tmp_path / "loop.json"
    assert video.main(["loop", *small(), "--steps", "3", "--out", str(path)]) == 0
    assert all(distance < 1e-6 for distance in json.loads(path.read_text())["latents_rel_l1"].values())


def test_a_model_without_a_pipeline_and_a_missing_package_are_said(video, monkeypatch):
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    from attnbench.workloads.base import load_workload

    workload = load_workload("video")
    with pytest.raises(SystemExit, match="model=tiny-wan has no pipeline"):
        video.pipeline_of(workload.case({"model": "tiny-wan"}), None)
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(SystemExit, match="module=transformers is needed"):
        video.pipeline_of(workload.case({"model": "tiny"}), None)
