"""Input and output of a race: its rules, its heats, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CLOSE = 0.01
"""The pick should be within this share of the best."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Parameters of a race."""

    heat: int = 16
    "most contestants of a heat, including the anchor"
    first_rounds: int = 5
    growth: float = 2.0
    "rounds of a stage divided by those of the stage before"
    stages: int = 4
    "before the final; if contestants are left after these, half go on from stage to stage"
    finalists: int = 8
    final_rounds: int = 100
    "total of the final's first heats"
    final_heats: int = 4
    "number of new sessions that the final is spread over, to average out the offset of each session"
    most_heats: int = 12
    "upper limit of the final's heats, which continue while a finalist may be faster than the pick by more than CLOSE"
    warmup: int = 1
    "discarded rounds at the start of every heat"
    risk: float = 0.05
    "of dropping the best"
    share: float = 0.2
    "of the time to sample every contestant as often as a finalist; a stage that does not fit is skipped"
    seconds: float | None = None
    "sampling time; a stage that does not fit is skipped, and the final is shortened; None: no limit"


@dataclass(frozen=True, kw_only=True, slots=True)
class Heat:
    """Contestants that are sampled together, and how often."""

    stage: int
    "from 1"
    names: tuple[str, ...]
    "the anchor first"
    rounds: int
    seed: int
    final: bool = False

    @property
    def anchor(self) -> str:
        """The contestant that the others are compared with."""
        return self.names[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Final result of one contestant."""

    name: str
    ratio: float
    "its time over the pick's: 1.02 is 2 % slower"
    ci_low: float | None
    ci_high: float | None
    "95 % interval; None if there are too few samples"
    median_ms: float
    "for those out before the final, ratio times the pick's: their few samples had another clock"
    rounds: int
    "number of samples behind the ratio"
    stage: int
    "of its last heat"
    ended: Literal["picked", "final", "dropped", "cut", "reference"]
    "cut: not shown slower, but no room in the final; reference: not raced, sampled in turn with the pick"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Outcome of a race."""

    pick: str
    standings: tuple[Standing, ...]
    "the fastest first"
    regret: float
    "expected loss of the pick compared with the best, as a share of its time"
    most: float
    "loss that is not exceeded with 95 % probability"
    close: float
    "probability that the pick is within CLOSE of the best"
    sampled_s: float
    exhaustive_s: float
    "time that sampling every contestant as often as a finalist would have taken"
