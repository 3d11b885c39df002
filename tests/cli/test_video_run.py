"""`attnbench run video` from the command line to the record, on a CPU."""

from __future__ import annotations

import json

import pytest

from attnbench.cli import main
from attnbench.suites.load import load_suite
from forked_workers import forking

SMALL = ["--height", "32", "--width", "32", "--device", "cpu", "--no-save"]


@pytest.fixture(scope="module")
def forked_worker():
    """Of a process that has imported the model's classes, too, which takes longer than all that these tests do."""
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    from attnbench.models.video.build import CLASSES

    with forking(*(module for module, _ in CLASSES["cogvideox"].values())) as command:
        yield command


@pytest.mark.usefixtures("forked_workers")
def test_a_step_and_a_generation_are_measured_for_each_attention(tmp_path, capsys):
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    path = tmp_path / "run.json"
    assert (
        main(
            [
                "run",
                "video",
                *SMALL,
                "--warmup",
                "0",
                "--iterations",
                "2",
                "--steps",
                "2",
                "--backends",
                "eager,fa,flash-triton",
                "--baseline",
                "sdpa",
                "--json",
                str(path),
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "denoising step" in shown
    assert "latents, relative L1 after step" in shown
    assert "random weights" in shown
    records = {one["backend"]: one for one in json.loads(path.read_text())["records"]}
    assert list(records) == ["video[sdpa]", "video[eager]", "video[sdpa-flash]", "video[flash-triton]"]
    assert records["video[flash-triton]"]["status"] == "skipped"
    for name in ("video[sdpa]", "video[eager]", "video[sdpa-flash]"):
        one = records[name]
        assert one["status"] == "passed"
        assert {output: error["ok"] for output, error in one["errors"].items()} == {
            "out": True,
            "latents": True,
            "attention": True,
        }
        assert one["counters"]["attention_calls"] == 2 * 2
        assert one["counters"]["generation_s"] > one["counters"]["decode_s"] > 0
        assert one["phases"]["attention"]["timer"] == "reported"
        assert one["phases"]["attention"]["median_ms"] > 0
    assert records["video[eager]"]["repro"].startswith("attnbench compare --workload video --model tiny ")
    assert records["video[eager]"]["counters"]["latents_rel_l1_2"] < 1e-4


FILE = """
import torch

def attention(q, k, v, scale):
    return {}
"""


@pytest.mark.usefixtures("forked_workers")
def test_a_function_of_a_file_is_an_attention_of_the_model(tmp_path, monkeypatch, capsys):
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        FILE.format("torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)")
    )
    (tmp_path / "zeros.py").write_text(FILE.format("torch.zeros_like(q)"))
    path = tmp_path / "run.json"
    assert main(["check", "video", *SMALL, "--backends", "./mine.py,./zeros.py", "--json", str(path)]) == 1
    records = {one["backend"]: one for one in json.loads(path.read_text())["records"]}
    assert records["video[mine]"]["status"] == "passed"
    assert records["video[mine]"]["repro"].endswith(
        "--backends 'video[sdpa],video[mine],mine.py,zeros.py' --device cpu"
    )
    assert records["video[zeros]"]["status"] == "incorrect"
    assert "attention: wrong values" in records["video[zeros]"]["reason"]


def test_the_suite_is_that_of_the_seed_on_a_card_and_tiny_on_a_cpu():
    here, card = load_suite("video", "cpu"), load_suite("video", "cuda")
    assert (here.axes["model"], here.axes["dtype"]) == (("tiny",), ("fp32",))
    assert card.axes["model"] == ("cogvideox-2b",)
    assert {"sdpa", "fa", "flash-triton"} <= set(card.backends)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--height", "40"], "video: height=40 cannot be used: 16 does not divide it; a multiple of 16"),
        (["--frames", "10"], "video: frames=10 is not of the form 4k + 1"),
        (["--steps", "0"], "--steps=0 cannot be used; a whole number from 1"),
        (
            ["--dense-steps", "2"],
            "video: dense-steps=2 changes nothing: no row has a block map; 0, or a row of `sparse`",
        ),
        (
            ["--density", "0.5"],
            "video: density=0.5 changes nothing: no row has a block map; none, or a row of `sparse`",
        ),
        (["--dense-steps", "4"], "video: dense-steps=4 leaves none of 4 steps sparse; at most 3"),
        (["--guidance", "much"], "--guidance=much cannot be used; a finite number from 0"),
        (["--compile", "yes"], "--compile=yes is not known; one of none, default, max-autotune-no-cudagraphs"),
        (["--model", "sora"], "--model=sora is not known; one of cogvideox-2b"),
        (["--backends", "hstu-eager"], "name=hstu-eager computes hstu"),
        (
            ["--backends", "sage9"],
            "name=sage9 is not known; one of block-sparse-attn, cudnn-bsa, dense, eager, fa3-fwd",
        ),
        (["--seqlen", "5"], "axis=seqlen is not known"),
    ],
)
def test_a_wrong_request_is_answered_in_one_line_before_anything_is_measured(words, said, capsys):
    assert main(["run", "video", "--device", "cpu", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


BROKEN = """
import torch

def attention(q, k, v, scale):
    calls.append(None)
    if len(calls) > 60:
        raise RuntimeError("out of order")
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)

calls = []
"""


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("broken", [False, True])
def test_whose_latents_the_others_are_compared_with_is_said(broken, tmp_path, monkeypatch, capsys):
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(BROKEN if broken else BROKEN.replace("60", "10**9"))
    path = tmp_path / "run.json"
    words = ["--backends", "./mine.py,eager,sdpa", "--baseline", "mine", "--iterations", "1", "--no-save"]
    main(["run", "video", *SMALL, *words, "--json", str(path)])
    records = {one["backend"]: one for one in json.loads(path.read_text())["records"]}
    assert (records["video[mine]"]["status"] == "failed") == broken
    reference = "eager" if broken else "mine"
    for name in {"eager", "sdpa", "mine"} - ({"mine"} if broken else set()):
        note = f"latents are compared with those of {reference}"
        assert (note in records[f"video[{name}]"]["notes"]) == (name != reference), name
        assert ("latents_rel_l1_1" in records[f"video[{name}]"]["counters"]) == (name != reference), name


def test_a_model_of_full_size_on_a_cpu_is_estimated_in_words(capsys):
    assert main(["run", "video", "--device", "cpu", "--model", "wan-1.3b", "--steps", "1000", "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ": a case of this size is not for this device; a smaller case, or a GPU " in said


@pytest.mark.usefixtures("forked_workers")
def test_a_folder_without_weights_ends_in_records_with_the_reason(tmp_path, capsys):
    pytest.importorskip("diffusers", reason="diffusers is not installed; pip install attnbench[video]")
    assert main(["check", "video", *SMALL, "--weights", str(tmp_path)]) != 0
    shown = capsys.readouterr()
    assert "has no transformer/config.json" in " ".join((shown.out + shown.err).split())
    assert str(tmp_path.parent) not in shown.out
