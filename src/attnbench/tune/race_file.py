"""The stored race: every sample of every heat, each failure with its reason, and thereby the result.

One JSON file per race, in the folder ``tuning`` beside the run files, written atomically after every step.  A race is a
function of its samples, so the same file is the result of a finished race and the start of an interrupted one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnbench.errors import RunFileError, refusal, unreadable
from attnbench.record import Environment, Settings, from_dict, to_dict
from attnbench.stats.race_data import Outcome, Rules
from attnbench.stats.racing import Race
from attnbench.store.files import write_text
from attnbench.text import Spelled

FOLDER = "tuning"
SCHEMA = 1
ACCEPTED = "a file written by attnbench tune"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure(Spelled):
    """Why a configuration does not run or is wrong."""

    status: str
    "incorrect, skipped, oom, timeout, crashed or failed"
    reason: str
    step: str
    "compile, check, or the stage of the race"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference(Spelled):
    """Another backend, sampled alternately with the pick after the race; if it has no time, the reason."""

    median_ms: float | None = None
    ratio: float | None = None
    "its time over the pick's time"
    ci_low: float | None = None
    ci_high: float | None = None
    rounds: int = 0
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """Wall time of each step."""

    compile: float = 0.0
    check: float = 0.0
    race: float = 0.0
    "heats, with opening and closing their sessions"
    sampling: float = 0.0
    "part of the heats: taking samples"


@dataclass(frozen=True, kw_only=True, slots=True)
class RaceFile(Spelled):
    """A race, finished or not."""

    key: Mapping[str, Any]
    backend: str
    workload: str
    case: Mapping[str, Any]
    case_id: str
    started: str
    "ISO 8601, UTC"
    environment: Environment
    settings: Settings
    rules: Mapping[str, Any]
    configs: Mapping[str, Mapping[str, Any]]
    "values by selector; the default, which has none, first"
    compiled: tuple[str, ...] = ()
    "configurations compiled in advance without an error"
    checked: tuple[str, ...] = ()
    "configurations checked and correct"
    failures: Mapping[str, Failure] = field(default_factory=dict)
    heats: tuple[Mapping[str, Mapping[str, float]], ...] = ()
    "milliseconds by selector and round, in the order of running"
    references: Mapping[str, Reference] = field(default_factory=dict)
    "by name, in the order asked for"
    tick_ms: float = 0.0
    flops: int | None = None
    timer: str | None = None
    l2: str | None = None
    seconds: Seconds = field(default_factory=Seconds)

    def race_rules(self) -> Rules:
        """Rules of the race."""
        return Rules(**dict(self.rules))

    def race(self) -> Race | None:
        """The race so far; None if no configuration is correct."""
        names = [name for name in self.configs if name in self.checked]
        if not names:
            return None
        race = Race(names, self.race_rules(), seed=self.settings.seed, tick_ms=self.tick_ms)
        for times in self.heats:
            race.take({name: {int(index): ms for index, ms in own.items()} for name, own in times.items()})
        return race

    def outcome(self) -> Outcome | None:
        """The result; None while the race is not over, or if no configuration finished it."""
        race = self.race()
        if race is None or race.heat is not None or not race.final:
            return None
        return race.outcome()

    def with_(self, **fields: Any) -> RaceFile:
        """Return a copy with other fields; `seconds` are added, not replaced."""
        spent = fields.pop("spent", None)
        if spent is not None:
            fields["seconds"] = Seconds(
                **{
                    name: getattr(self.seconds, name) + spent.get(name, 0.0)
                    for name in ("compile", "check", "race", "sampling")
                }
            )
        return dataclasses.replace(self, **fields)


def place(out_dir: str | Path, case_id: str, backend: str, digest: str) -> Path:
    """Return the file of a race in a folder of results."""
    return Path(out_dir) / FOLDER / f"{backend}-{case_id}-{digest}.json"


def write(kept: RaceFile, path: Path) -> None:
    """Write a race to disk atomically.

    Raises:
        UsageError: the file cannot be written.
    """
    write_text(path, json.dumps({"schema": SCHEMA, "tuning": to_dict(kept)}, ensure_ascii=False) + "\n")


def read(path: Path) -> RaceFile | None:
    """Read a race; None if there is no file.

    Raises:
        RunFileError: it is truncated, of a newer schema, or not written by attnbench tune.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RunFileError(refusal("tuning", "path", path, unreadable(error), ACCEPTED)) from None
    todo = "attnbench tune … --again writes it anew"
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise RunFileError(refusal("tuning", "path", path, f"has schema {data['schema']}", f"{SCHEMA}", todo))
        kept = from_dict(RaceFile, data["tuning"], "tuning")
        kept.race()
    except (ValueError, KeyError, TypeError, RunFileError) as error:
        wrong = f"cannot be read ({' '.join(str(error).split())[:200]})"
        raise RunFileError(refusal("tuning", "path", path, wrong, ACCEPTED, todo)) from None
    return kept
