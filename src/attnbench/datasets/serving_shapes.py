"""Choose a few steps (batch, cached, new, candidates) from users' histories, and write them as suites of listed cases.

A request of a replay (`processed_batches.csv`) comes at the end of an interval.  Its cached tokens are the history up
to the request before it, its new tokens the rest.  All requests whose history the model still accepts are sorted by
cached tokens and split into strata of equal size; one request of each is drawn by seed.  So a few cases cover what a
server receives, including the longest histories.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from attnbench.datasets.history import History, intervals
from attnbench.errors import UsageError, refusal, unknown
from attnbench.models.hstu_ranking.config import ModelConfig, config_of

WHO = "serving shapes"
STEPS, ATTENTION = "serving-shapes.toml", "serving-shapes-attention.toml"
MODELS = ("kuairand", "bench")
CPU_TOKENS = 512
"Longest history in the cases for a CPU."


@dataclass(frozen=True, slots=True)
class Shape:
    """One user's part of a step, in tokens."""

    cached: int
    new: int


def model_of(name: str) -> ModelConfig:
    """Return the model whose steps are drawn.

    Raises:
        UsageError: the model's histories are not KuaiRand's.
    """
    if name not in MODELS:
        raise unknown(WHO, "--model", name, MODELS)
    return config_of(name)


def draw_shapes(
    histories: Iterable[History], config: ModelConfig, *, count: int, interval_s: int, seed: int
) -> tuple[list[Shape], int]:
    """Return requests that cover the cached lengths of all.

    Args:
        histories: histories of the users.
        config: model; one token per context feature, two per item.
        count: number of strata.
        interval_s: interval of a replay.
        seed: seed of the draw.

    Returns:
        The shapes, shortest cached first, and the number of requests from which they were drawn.

    Raises:
        UsageError: there are fewer requests than strata.
    """
    found: list[tuple[int, int]] = []
    for history in histories:
        ends = [end for end in intervals(history.time_ms, 1000 * interval_s) if end <= config.max_history]
        found += [(before, end - before) for before, end in pairwise(ends)]
    if len(found) < count:
        raise UsageError(
            refusal(
                WHO,
                "--shapes",
                count,
                f"are more than the {len(found)} requests of these users",
                "fewer shapes or more users",
            )
        )
    found.sort()
    drawn, context = np.random.default_rng([seed, 5]), len(config.context)
    edges = np.linspace(0, len(found), count + 1).astype(int)
    chosen = sorted(found[int(drawn.integers(low, high))] for low, high in pairwise(edges))
    # At a user's first request nothing is cached, not even the context.
    return [
        Shape(context + 2 * before, 2 * new) if before else Shape(0, context + 2 * new) for before, new in chosen
    ], len(found)


def write_suites(
    folder: Path,
    shapes: Sequence[Shape],
    config: ModelConfig,
    *,
    batches: Sequence[int],
    candidates: Sequence[int],
    source: str,
) -> list[Path]:
    """Write a suite of whole steps (workload hstu-serving) and one of their attention only (workload hstu).

    Args:
        folder: folder of the suites; created if missing.
        shapes: shapes of `draw_shapes`.
        config: the model.
        batches: batches of each shape.
        candidates: candidates of each request.
        source: description of the data.

    Raises:
        UsageError: the folder cannot be written to.
    """
    cases = [(batch, shape, targets) for batch in batches for targets in candidates for shape in shapes]
    steps = [
        _case(
            batch=batch,
            num_candidates=targets,
            cached=shape.cached,
            new_tokens=shape.new,
            model=config.name,
            dtype="bf16",
        )
        for batch, shape, targets in cases
    ]
    attention = [_attention(batch, shape, targets, config, "bf16") for batch, shape, targets in cases]
    context = len(config.context)
    small = [Shape(min(max(shape.cached - context, 0), CPU_TOKENS), min(shape.new, 64)) for shape in shapes[:2]]
    on_cpu = [
        _case(batch=batch, num_candidates=32, cached=shape.cached, new_tokens=shape.new, model="small", dtype="fp32")
        for batch, shape in enumerate(small, 1)
    ]
    attention_on_cpu = [_attention(batch, shape, 32, config, "fp32") for batch, shape in enumerate(small, 1)]
    words = f"of {len(shapes)} requests drawn from {source.partition(':')[0]}"
    files = {
        STEPS: _suite(
            "serving-shapes",
            f"HSTU ranking steps {words}",
            "hstu-serving",
            (
                '"serving-paged", "serving-paged[graph]", "serving-gathered[hstu-triton]", "serving-paged[no-cache]"',
                "serving-paged[no-cache]",
            ),
            ('"serving-eager", "serving-eager[no-cache]"', "serving-eager[no-cache]"),
            steps,
            on_cpu,
            source,
        ),
        ATTENTION: _suite(
            "serving-shapes-attention",
            f"HSTU attention of ranking steps {words}",
            "hstu",
            ('"hstu-triton"', "hstu-triton"),
            ('"hstu-eager", "hstu-compile"', "hstu-eager"),
            attention,
            attention_on_cpu,
            source,
        ),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(refusal("data", "--to", folder, f"cannot be written ({error.strerror})", "a folder")) from None
    return [folder / name for name in files]


def _attention(batch: int, shape: Shape, targets: int, config: ModelConfig, dtype: str) -> str:
    """Return a case of the workload hstu: the new history and the candidates are the queries."""
    return _case(
        batch=batch,
        seqlen=shape.cached + shape.new + targets,
        nheads=config.heads,
        attn_dim=config.dim,
        num_targets=str(targets),
        delta_q=shape.new + targets,
        scaling_seqlen=config.scaling_seqlen,
        dtype=dtype,
    )


def _case(**values: int | str) -> str:
    return "{ " + ", ".join(f"{name} = {_value(value)}" for name, value in values.items()) + " },"


def _value(value: int | str) -> str:
    return str(value) if isinstance(value, int) else f'"{value}"'


def _suite(
    name: str,
    title: str,
    workload: str,
    backends: tuple[str, str],
    on_cpu: tuple[str, str],
    cases: Sequence[str],
    cpu_cases: Sequence[str],
    source: str,
) -> str:
    lines = [
        f"# Source: {source}.",
        "# Written by attnbench data serving-shapes.",
        f'name = "{name}"',
        f'title = "{title}"',
        f'workload = "{workload}"',
        f"backends = [{backends[0]}]",
        f'baseline = "{backends[1]}"',
        "cases = [",
        *(f"    {case}" for case in dict.fromkeys(cases)),
        "]",
        "",
        "[settings]",
        "rel_ci = 0.01",
        "max_seconds = 2.0",
        "",
        "[cpu]",
        f'title = "{title}, cut down for a CPU, fp32"',
        f"backends = [{on_cpu[0]}]",
        f'baseline = "{on_cpu[1]}"',
        "cases = [",
        *(f"    {case}" for case in dict.fromkeys(cpu_cases)),
        "]",
    ]
    return "\n".join(lines) + "\n"
