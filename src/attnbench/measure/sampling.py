"""Samples of several closures taken in turn: the contract; see `sample`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnbench.record import PowerSeries


@dataclass(kw_only=True, slots=True)
class Subject:
    """One competitor: a closure ready to be called again and again."""

    name: str
    call: Callable[[], Any]
    reset: Callable[[], None] | None = None
    "untimed, before each sample"
    reported_ms: Callable[[], float] | None = None
    "the kernel's own figure for the last call"
    capturable: bool = True
    "may be recorded in a CUDA graph"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How to sample a group."""

    timer: str = "auto"
    l2: str = "auto"
    regime: str = "burst"
    warmup: int | None = None
    iterations: int | None = None
    rel_ci: float = 0.01
    max_seconds: float = 2.0
    seed: int = 0


@dataclass(kw_only=True, slots=True)
class Timing:
    """What was sampled of one subject, in the order of measuring."""

    name: str
    timer: str
    l2: str
    regime: str
    stopped_by: str = ""
    samples_ms: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    sm_mhz: list[float | None] = field(default_factory=list)
    busy_ms: float | None = None
    host_ms: float | None = None
    kernels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(kw_only=True, slots=True)
class GroupTiming:
    """A sampled group: one timing a subject (in the subjects' order), by each timer asked for."""

    timings: list[Timing]
    by_timer: dict[str, list[Timing]] = field(default_factory=dict)
    power: PowerSeries | None = None
    sampling_s: float = 0.0
    "wall time spent taking samples"


def sample(
    subjects: Sequence[Subject],
    *,
    device: str,
    plan: Plan,
    announce: Callable[[int, str], None] = lambda index, phase: None,
) -> GroupTiming:
    """Sample all subjects round by round (being written)."""
    raise NotImplementedError
