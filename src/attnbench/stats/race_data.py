"""Input and output of a race: its rules, its heats, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CLOSE = 0.01
"""The pick is to be within this of the best."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How a race is run."""

    heat: int = 16
    "contestants of a heat at most, the anchor among them"
    first_rounds: int = 5
    growth: float = 2.0
    "rounds of a stage over those of the stage before"
    stages: int = 4
    "before the final; of who is left after these, half go on from stage to stage"
    finalists: int = 8
    final_rounds: int = 100
    "of the final's first heats together"
    final_heats: int = 4
    "sessions opened afresh that the final is spread over: what a session leaves a configuration off by is averaged"
    most_heats: int = 12
    "that the final goes on to while a finalist may be faster than the pick by more than CLOSE"
    warmup: int = 1
    "rounds before those that count, in every heat"
    risk: float = 0.05
    "of dropping the best"
    share: float = 0.2
    "of what sampling everyone as often as a finalist would take; a stage that does not fit is left out"
    seconds: float | None = None
    "of sampling; a stage that does not fit is left out, and the final is cut short; None: as many as it takes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Heat:
    """Who is sampled together, and how often."""

    stage: int
    "from 1"
    names: tuple[str, ...]
    "the anchor first"
    rounds: int
    seed: int
    final: bool = False

    @property
    def anchor(self) -> str:
        """Whom the others are compared with."""
        return self.names[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where one contestant ended."""

    name: str
    ratio: float
    "its time over the pick's: 1.02 is 2 % slower"
    ci_low: float | None
    ci_high: float | None
    "95 % interval; None where its samples give none"
    median_ms: float
    "of who left before the final the ratio times the pick's: its own few samples had another clock"
    rounds: int
    "samples behind the ratio"
    stage: int
    "of its last heat"
    ended: Literal["picked", "final", "dropped", "cut", "reference"]
    "cut: not shown slower, but no room in the final; reference: not raced, sampled in turn with the pick"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a race ended."""

    pick: str
    standings: tuple[Standing, ...]
    "the fastest first"
    regret: float
    "expected loss of the pick against the best, as a share of its time"
    most: float
    "loss that is not exceeded with 95 % chance"
    close: float
    "chance that the pick is within CLOSE of the best"
    sampled_s: float
    exhaustive_s: float
    "what sampling everyone as often as a finalist would have taken"
