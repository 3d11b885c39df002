"""What a video row has to reach: our loop beside the pipeline of diffusers, and runs held against each other.

    python benchmarks/video.py loop --out benchmarks/results/video-loop-h200.json
    python benchmarks/video.py run --out benchmarks/results/video-compiled-h200.json --compile default --steps 10
    python benchmarks/video.py repeats FIRST.json SECOND.json --out benchmarks/results/video-repeats-h200.json
    python benchmarks/video.py targets

`loop` generates in turn, round by round, with the same weights, noise and embeddings and with torch's own attention:

    pipeline    CogVideoXPipeline of diffusers from its first prediction on, the decoder left out
    loop        the denoising loop of `attnbench run video`, its attention exchanged for the row `sdpa`
    bare        the same loop around a transformer as diffusers makes it, with diffusers' own attention
    launch      the steps of that row as the harness calls them, one after the other

The pipeline's class needs the package transformers; no text encoder is built.  `run` is `attnbench run video` and its wall
time.  `repeats` holds the ratios of two run files of one command against each other, and the bits of their latents.
`targets` prints what is wanted of the committed files, and what they say (`video_targets.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from attnbench.record import Record, Run, Status, to_dict
from attnbench.stats.ratio import paired_ratio
from attnbench.store.runfile import read

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.workloads.video.case import VideoCase

RESULTS = Path(__file__).resolve().parent / "results"
SECONDS = "video-seconds-h200.json"
"Wall time of the runs that `run` carried out, by the name of their file."
PIPELINE, LOOP, BARE, LAUNCH = "pipeline", "loop", "bare", "launch"
COMPARED = ((BARE, PIPELINE), (LOOP, PIPELINE), (LAUNCH, LOOP), (LOOP, BARE))
"Whose time is divided by whose."

Generate = Callable[[], tuple[float, "Tensor"]]
"""seconds, latents = generate(): all steps from the noise; the device is idle before and after."""


# ── our loop and the pipeline's ────────────────────────────────────────────────────────────────────


def loop(args: argparse.Namespace) -> dict[str, Any]:
    """Generate with each in turn, and compare their times within rounds and their latents."""
    from attnbench.backends.registry import resolve
    from attnbench.machine.devices import resolve as device_of
    from attnbench.machine.fingerprint import environment
    from attnbench.workloads.base import load_workload

    device = device_of(args.device)
    workload = load_workload("video")
    case = workload.case({"model": args.model, "dtype": args.dtype, "steps": args.steps, "warm_ups": 0})
    inputs = workload.inputs(case, seed=42, kind="normal", device=str(device))
    backend = resolve("video[sdpa]", case)
    with backend.session(case, inputs) as launch:
        ways = ways_of(case, inputs, launch)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        latents = {name: generate()[1] for name, generate in ways.items()}
        for number in range(args.rounds):
            names = [*ways][number % len(ways) :] + [*ways][: number % len(ways)]
            for name in names:
                seconds[name].append(ways[name]()[0])
    found = {
        "environment": to_dict(environment(device)),
        "case": case.to_dict(),
        "rounds": args.rounds,
        "seconds": seconds,
        "step_ms": {name: 1e3 * median(times) / case.steps for name, times in seconds.items()},
        "ratios": ratios_of(seconds),
        "latents_rel_l1": {
            name: float(
                (latents[name] - latents[PIPELINE]).double().abs().sum() / latents[PIPELINE].double().abs().sum()
            )
            for name in (LOOP, BARE)
        },
    }
    for name, ratio in found["ratios"].items():
        print(f"{name}: {100 * (ratio['ratio'] - 1):+.3f} %, {interval(ratio)}")
    return found


def ratios_of(seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Time over time within rounds, by ``loop over pipeline`` and so on."""
    by_round = {name: dict(enumerate(times)) for name, times in seconds.items()}
    return {f"{one} over {other}": asdict(paired_ratio(by_round[one], by_round[other])) for one, other in COMPARED}


def interval(ratio: Mapping[str, Any]) -> str:
    """Its 95 % interval in words."""
    low, high = ratio["ci_low"], ratio["ci_high"]
    return "too few rounds for an interval" if low is None else f"{100 * (low - 1):+.3f} to {100 * (high - 1):+.3f} %"


def ways_of(case: VideoCase, inputs: Any, launch: Any) -> dict[str, Generate]:
    """The four, in the order of the docstring."""
    from attnbench.models.video.denoise import Denoiser, predictor

    device, parts = inputs.latents.device, inputs.parts
    ours, _ = inputs.denoiser(_torchs)
    plain = Denoiser(
        parts, predictor(parts.with_own_modules()), steps=case.steps, guidance=case.guidance, device=device
    )

    def generated(denoiser: Denoiser) -> tuple[float, Tensor]:
        one = denoiser.generate(case.steps, inputs.latents, inputs.embeds, decode=False)
        return one.total_s, one.latents

    def launched() -> tuple[float, Tensor]:
        launch.reset()
        _wait(device)
        started = time.perf_counter()
        for _ in range(case.steps):
            launch.forward()
        _wait(device)
        return time.perf_counter() - started, launch.outputs()["latents"]

    return {
        PIPELINE: pipeline_of(case, inputs),
        LOOP: lambda: generated(ours),
        BARE: lambda: generated(plain),
        LAUNCH: launched,
    }


def _torchs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def pipeline_of(case: VideoCase, inputs: Any) -> Generate:
    """CogVideoXPipeline with given noise and embeddings, over the same weights.

    Raises:
        SystemExit: transformers is not installed, or the model is not one of CogVideoX.
    """
    import copy

    import torch

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if not case.config.joint:
        raise SystemExit(f"video: model={case.model} has no pipeline here; cogvideox-2b or tiny")
    try:
        from diffusers import CogVideoXPipeline
    except (ImportError, RuntimeError) as error:
        raise SystemExit(
            f"video: module=transformers is needed by the pipeline ({error}); pip install transformers"
        ) from None
    device, first = inputs.latents.device, [0.0]
    transformer = inputs.parts.with_own_modules()
    pipeline = CogVideoXPipeline(None, None, inputs.parts.vae, transformer, copy.deepcopy(inputs.parts.scheduler))
    pipeline.set_progress_bar_config(disable=True)

    def begins(*_: Any) -> None:
        if not first[0]:
            _wait(device)
            first[0] = time.perf_counter()

    transformer.register_forward_pre_hook(begins)
    without, given = inputs.embeds.split(1) if case.batch == 2 else (None, inputs.embeds)

    def generate() -> tuple[float, Tensor]:
        first[0] = 0.0
        with torch.no_grad():
            found = pipeline(
                prompt_embeds=given,
                negative_prompt_embeds=without,
                latents=inputs.latents,
                height=case.height,
                width=case.width,
                num_frames=case.frames,
                num_inference_steps=case.steps,
                guidance_scale=case.guidance,
                output_type="latent",
                return_dict=False,
            )[0]
        _wait(device)
        return time.perf_counter() - first[0], found

    return generate


def _wait(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ── runs ───────────────────────────────────────────────────────────────────────────────────────────


def timed_run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """`attnbench run video` with its wall time, which is written beside its run file."""
    started = time.perf_counter()
    code = subprocess.run(
        [sys.executable, "-m", "attnbench", "run", "video", *rest, "--json", str(args.out)], check=False
    ).returncode
    seconds = time.perf_counter() - started
    if code == 0:
        place = args.out.with_name(SECONDS)
        known = json.loads(place.read_text("utf-8")) if place.is_file() else {}
        place.write_text(json.dumps(dict(sorted((known | {args.out.name: seconds}).items())), indent=1) + "\n", "utf-8")
    print(f"{seconds:.0f} s of wall time")
    return code


def repeats(first: Run, second: Run) -> dict[str, Any]:
    """Ratio to the baseline of each row in both runs, and whether an exact row has the same latents to the bit.

    Raises:
        SystemExit: the runs have no row in common that passed beside its baseline.
    """
    found = []
    ones, others = (rows_of(run) for run in (first, second))
    for key in [key for key in ones if key in others]:
        one, other = ones[key], others[key]
        row: dict[str, Any] = {"case": key[0], "backend": key[1]}
        if one.speedup and other.speedup:
            ratios = [record.speedup.ratio for record in (one, other) if record.speedup]
            row |= {"ratios": ratios, "ratio": ratios[1] / ratios[0], "baseline": one.speedup.baseline}
            bases = [rows[key[0], one.speedup.baseline] for rows in (ones, others)]
            cycles = [in_cycles(base, record) for base, record in zip(bases, (one, other), strict=True)]
            if None not in cycles:
                row |= {"ratios_in_cycles": cycles, "ratio_in_cycles": cycles[1] / cycles[0]}
        bits = [record.counters.get("latents_crc32") for record in (one, other)]
        found.append(row | {"latents_crc32": bits, "same_latents": None if None in bits else bits[0] == bits[1]})
    if not any("ratio" in row for row in found):
        raise SystemExit("video: the runs have no row in common beside a baseline; two run files of one command")
    return {"environment": to_dict(second.environments[0]), "runs": [first.id, second.id], "rows": found}


def in_cycles(baseline: Record, record: Record) -> float | None:
    """Median of the rounds' ratios of SM clock cycles; None where the clock is not known.

    At its power limit the card lowers its clock, from step to step by more than 1 %, and times follow.
    """
    steps = []
    for one in (baseline, record):
        assert one.time is not None
        steps.append(
            {at: ms * mhz for at, ms, mhz in zip(one.time.rounds, one.time.samples_ms, one.time.sm_mhz, strict=False)}
        )
    shared = [at for at in steps[0] if at in steps[1]]
    return median(steps[0][at] / steps[1][at] for at in shared) if shared else None


def rows_of(run: Run) -> dict[tuple[str, str], Record]:
    """What passed, by case and backend."""
    return {(one.case_id, one.backend): one for one in run.records if one.status is Status.PASSED}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the first word says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser(LOOP)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--device", default="auto")
    one.add_argument("--model", default="cogvideox-2b")
    one.add_argument("--dtype", default="bf16")
    one.add_argument("--steps", type=int, default=3)
    one.add_argument("--rounds", type=int, default=12)
    two = verbs.add_parser("run")
    two.add_argument("--out", type=Path, required=True)
    three = verbs.add_parser("repeats")
    three.add_argument("runs", type=Path, nargs=2)
    three.add_argument("--out", type=Path, required=True)
    four = verbs.add_parser("targets")
    four.add_argument("--results", type=Path, default=RESULTS)
    args, rest = parser.parse_known_args(arguments)
    if args.verb == "run":
        return timed_run(args, rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if args.verb == "targets":
        from video_targets import lines

        print("\n".join(lines(args.results)))
        return 0
    found = loop(args) if args.verb == LOOP else repeats(*map(read, args.runs))
    args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    for row in found.get("rows", ()):
        if "ratio" in row:
            print(
                f"{row['backend']}: {row['ratios'][0]:.4f} and {row['ratios'][1]:.4f}, {100 * (row['ratio'] - 1):+.3f} %"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
