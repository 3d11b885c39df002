"""Finds the fastest of many configurations with few samples of most and many samples of few.

A race has stages.  In each, all contestants left run in *heats*: groups sampled round by round, small enough to be
open at once, each with the same *anchor*, the leader of the stage before.  A contestant that is slower than the
anchor beyond the uncertainty of its samples is dropped; the next stage takes twice the rounds of those left.
At most a handful of *finalists* run once more, in several heats of new order and new sessions, and only these new
samples decide the pick, so that luck in an earlier heat does not count.  While a finalist may be faster than the pick
by over 1 %, more heats follow.

**The best is kept.**  The anchor is chosen before the heat, so its luck in that heat does not affect the choice, and
only samples of that heat count.  The best is no slower than any anchor: it is dropped only if its own test against
the anchor errs, and however many contestants run, there is one such test per stage.  Contestants far behind the
leader of the stage itself are dropped too, by a test that accounts for all that might lead by chance
(`placing.slower`).  Each stage has its share of `Rules.risk`; from the last of `Rules.stages` on, each has half of
the rest, so that no number of stages spends more (`benchmarks/race_risk.py` simulates it).  If a stage of all
contestants left is beyond the budget, the half with the highest expected gain goes on (`placing.hope`), so that a
noisy one is sampled further and not cut by bad luck in few samples.

**The expected loss of the pick** is simulated from the results of all: finalists by their levels over the final's
heats and the differences between these (`finals`); dropped contestants by their last heat, anchor by anchor up to the
final, plus the offset of a session, shrunk towards the mean of their stage as far as its spread is mere noise
(empirical Bayes), because of fifty equal contestants one always seems better.  Finalists are not shrunk.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from attnbench.stats.finals import final_levels, joined, with_offset
from attnbench.stats.placing import Placing, Times, hope, placings, prior, slower
from attnbench.stats.race_data import CLOSE, Heat, Outcome, Rules, Standing
from attnbench.stats.ratio import paired_ratio
from attnbench.stats.series import TWO_SIDED

FEWEST_FINAL_ROUNDS = 10
DRAWS = 4000
SURE = 1.645
"""Standard errors by which a finalist has to be shown no better than `CLOSE`."""


class Race:
    """A race, determined by its samples: the same names, rules and times always give the same outcome.

    Args:
        names: contestants; the first is the first anchor.
        rules: parameters of the race.
        seed: of the assignment to heats and of the order in them.
        tick_ms: resolution of the timer; may be set once it is known.
    """

    def __init__(self, names: Sequence[str], rules: Rules, *, seed: int = 0, tick_ms: float = 0.0) -> None:
        if not names or len(set(names)) != len(names):
            raise ValueError(f"names={list(names)}: at least one, and each once")
        self.rules, self.seed, self.tick_ms = rules, seed, tick_ms
        self.running = list(names)
        self.anchor = names[0]
        self.stage = 0
        self.sampled_s = 0.0
        self.final: dict[str, dict[int, float]] | None = None
        self._placings: dict[str, Placing] = {}
        self._ended: dict[str, Literal["dropped", "cut"]] = {}
        self._pick_ms = 0.0
        self._stages: dict[int, dict[str, Placing]] = {}
        "placings of all contestants in each stage"
        self._leads: dict[int, Placing] = {}
        "of a stage's anchor, relative to the contestant that led instead"
        self._waiting: list[Heat] = []
        self._run: list[dict[str, dict[int, float]]] = []
        self._finals: list[dict[str, dict[int, float]]] = []
        self._next_stage()

    # ── heats ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def heat(self) -> Heat | None:
        """The heat to be sampled next; None if the race is over."""
        return self._waiting[0] if self._waiting else None

    @property
    def heats_left(self) -> int:
        """Number of heats left in this stage."""
        return len(self._waiting)

    def take(self, times: Mapping[str, Times]) -> None:
        """Record the samples of `heat`; a contestant without samples did not finish it and is out.

        Raises:
            ValueError: the race is over, or a time is not positive and finite.
        """
        if not self._waiting:
            raise ValueError("the race is over")
        heat = self._waiting.pop(0)
        found = {name: dict(times[name]) for name in heat.names if times.get(name)}
        if not all(0.0 < ms < math.inf for own in found.values() for ms in own.values()):
            raise ValueError("a time is not positive and finite")
        lost = set(heat.names) - set(found)
        self.running = [name for name in self.running if name not in lost]
        for own in found.values():
            self.sampled_s += median(own.values()) * (len(own) + self.rules.warmup) / 1e3
        if heat.final:
            self._take_final(heat, found)
        elif heat.anchor in lost:
            # Without the anchor there is no comparison: the stage starts again, with the fastest of this heat.
            self.anchor = min(found, key=lambda name: median(found[name].values()), default=heat.anchor)
            self._waiting, self.stage = [], self.stage - 1
            self._next_stage()
        else:
            self._run.append(found)
            if not self._waiting:
                self._judge()
                self._next_stage()

    def _take_final(self, heat: Heat, found: dict[str, dict[int, float]]) -> None:
        """Keep a heat of the final; a finalist missing in one is out of all; more follow until it is decided."""
        self._finals = [{name: own for name, own in one.items() if name in found} for one in (*self._finals, found)]
        names = tuple(name for name in heat.names if name in found)
        self._waiting = [replace(one, names=names) for one in self._waiting] if names else []
        if not names:
            self._finals, self.final = [], {}
            self._call_back()
        elif not self._waiting:
            self.final = joined(self._finals)
            round_s = sum(median(own.values()) for own in self.final.values()) / 1e3
            heat_s = (heat.rounds + self.rules.warmup) * round_s
            in_time = self.rules.seconds is None or self.sampled_s + heat_s <= self.rules.seconds
            if 1 < len(self._finals) < self.rules.most_heats and in_time and not self._decided():
                self._waiting = [replace(heat, names=names, seed=heat.seed + 1)]

    def _decided(self) -> bool:
        """Whether the pick is within `CLOSE` of every finalist, with sufficient confidence."""
        logs, errors, _ = final_levels(self._finals, self.tick_ms)
        pick = min(logs, key=lambda name: logs[name])
        return all(
            logs[name] - SURE * math.hypot(errors[name], errors[pick]) >= logs[pick] - CLOSE
            for name in logs
            if name != pick
        )

    def _call_back(self) -> None:
        """After all finalists failed, start another final with those that were dropped last."""
        if self._ended:
            self.running = list(self._ended)
            self._ended = {}
            self._start_final()

    def _next_stage(self) -> None:
        rules, self._run = self.rules, []
        if not self.running:
            return
        if self.anchor not in self.running:
            self.anchor = min(self.running, key=self._level)
        self.stage += 1
        rounds = round(rules.first_rounds * rules.growth ** (self.stage - 1))
        if self.stage > rules.stages or not self._affordable(rounds):
            hurried = rules.seconds is not None and not self._in_time(rounds)
            self._narrow(rules.finalists if hurried else max(rules.finalists, math.ceil(len(self.running) / 2)))
        if len(self.running) <= rules.finalists:
            self._start_final()
            return
        others = [name for name in self.running if name != self.anchor]
        random.Random(f"{self.seed} {self.stage}").shuffle(others)
        heats = math.ceil(len(others) / (rules.heat - 1))
        self._waiting = [
            Heat(
                stage=self.stage,
                names=(self.anchor, *others[place::heats]),
                rounds=rounds,
                seed=self.seed + 1000 * self.stage + place,
            )
            for place in range(heats)
        ]

    def _start_final(self) -> None:
        rules = self.rules
        self._narrow(rules.finalists)
        if self.anchor not in self.running:
            self.anchor = self.running[0]
        rounds = rules.final_rounds
        if rules.seconds is not None and self._placings:
            left = rules.seconds - self.sampled_s
            rounds = max(FEWEST_FINAL_ROUNDS, min(rounds, int(left / self._round_s()) - rules.warmup))
        names = (self.anchor, *(name for name in self.running if name != self.anchor))
        heats = max(1, min(rules.final_heats, rounds // FEWEST_FINAL_ROUNDS)) if len(names) > 1 else 1
        self._waiting = [
            Heat(
                stage=self.stage,
                names=names,
                rounds=math.ceil(rounds / heats),
                final=True,
                seed=self.seed + 999_983 * (place + 1),
            )
            for place in range(heats)
        ]

    def _narrow(self, room: int) -> None:
        """Keep the contestants with the highest expected gain, and the anchor; cut the others."""
        ranked = sorted(self.running, key=lambda name: (name != self.anchor, -self._hope(name), self._level(name)))
        self.running = [name for name in self.running if name in set(ranked[:room])]
        self._ended |= dict.fromkeys(ranked[room:], "cut")

    def _hope(self, name: str) -> float:
        """Expected gain over the anchor, which is larger for a contestant that is less well known."""
        own, anchor = self._placings.get(name), self._placings.get(self.anchor)
        if own is None or anchor is None or not math.isfinite(own.error):
            return math.inf
        return hope(math.log(own.ms / anchor.ms), math.hypot(own.error, anchor.error))

    def _affordable(self, rounds: int) -> bool:
        """Whether the budget allows a stage and the final after it; the first stage always runs."""
        if not self._placings:
            return True
        rules, finalists = self.rules, self.rules.finalists / len(self.running)
        stage_s = (rounds + rules.warmup) * self._round_s()
        final_s = finalists * (rules.final_rounds + rules.warmup) * self._round_s()
        # In a small space the final dominates: the stages before it may then take as long as it does.
        if self.sampled_s + stage_s > max(rules.share * self._exhaustive_s() - final_s, final_s):
            return False
        return self._in_time(rounds)

    def _in_time(self, rounds: int) -> bool:
        """Whether `Rules.seconds` allow a stage and the shortest final."""
        rules, finalists = self.rules, min(1.0, self.rules.finalists / len(self.running))
        least = rounds + rules.warmup + finalists * (FEWEST_FINAL_ROUNDS + rules.warmup)
        return rules.seconds is None or self.sampled_s + least * self._round_s() <= rules.seconds

    def _round_s(self) -> float:
        """Time of one sample of each contestant that is left."""
        known = [self._placings[name].ms for name in self.running if name in self._placings]
        return sum(known) / 1e3

    def _exhaustive_s(self) -> float:
        """Time to sample every contestant that can run as often as a finalist."""
        rounds = self.rules.final_rounds + self.rules.warmup
        return sum(placing.ms for placing in self._placings.values()) * rounds / 1e3

    # ── who is dropped ─────────────────────────────────────────────────────────────────────────────

    def _judge(self) -> None:
        """Place all contestants by this stage's heats, drop the slower ones, and choose the next anchor."""
        placed = placings(self.anchor, self._run, self.stage, tick_ms=self.tick_ms)
        self._placings |= placed
        self._stages[self.stage] = placed
        dropped = slower(placed, self._risk())
        self.running = [name for name in self.running if name not in dropped]
        self._ended |= dict.fromkeys(sorted(dropped), "dropped")
        leader = min(self.running, key=self._level)
        if leader != self.anchor and math.isfinite(placed[leader].error):
            self._leads[self.stage] = replace(placed[leader], log=-placed[leader].log, anchor=leader)
        self.anchor = leader

    def _risk(self) -> float:
        """This stage's share of `Rules.risk`; the shares of all stages never exceed it in total."""
        rules, beyond = self.rules, max(0, self.stage - self.rules.stages + 1)
        return rules.risk / rules.stages / 2.0**beyond

    def _level(self, name: str) -> float:
        placing = self._placings.get(name)
        return math.inf if placing is None else placing.ms

    # ── the end ────────────────────────────────────────────────────────────────────────────────────

    def outcome(self) -> Outcome:
        """Return the pick and the results of the others.

        Raises:
            ValueError: the race is not over, or nobody finished it.
        """
        import numpy as np

        if self._waiting or not self.final:
            raise ValueError("the race is not over" if self._waiting else "nobody finished")
        final = self.final
        logs, errors, offset = final_levels(self._finals, self.tick_ms)
        pick = min(logs, key=lambda name: logs[name])
        self._pick_ms = median(final[pick].values())
        lots = np.random.default_rng(self.seed)
        # Degrees of freedom of the errors estimated from the final's heats.
        degrees = max(3, (len(final) - 1) * (len(self._finals) - 1))
        drawn = {name: logs[name] + errors[name] * lots.standard_t(degrees, DRAWS) for name in final}
        levels, doubts = dict(logs), dict(errors)
        priors = {
            stage: prior({name: with_offset(one, offset) for name, one in placed.items()})
            for stage, placed in self._stages.items()
        }
        for name in self._by_stage():
            placing = with_offset(self._link(name, levels), offset)
            levels[name] = placing.log + levels[placing.anchor]
            doubts[name] = math.hypot(placing.error, doubts[placing.anchor])
            if math.isfinite(placing.error):
                log, error = self._believed(placing, priors.get(placing.stage))
                drawn[name] = drawn[placing.anchor] + log + error * lots.standard_t(degrees, DRAWS)
        best = np.min(np.stack(list(drawn.values())), axis=0)
        losses = -np.expm1(best - drawn[pick])
        standings = [self._in_final(name, pick) for name in final]
        standings += [
            self._out_before(name, levels[name] - levels[pick], math.hypot(doubts[name], doubts[pick]))
            for name in levels
            if name not in final
        ]
        all_s = sum(one.median_ms for one in standings) * (self.rules.final_rounds + self.rules.warmup) / 1e3
        return Outcome(
            pick=pick,
            standings=tuple(sorted(standings, key=lambda one: (one.name != pick, one.ratio))),
            regret=float(losses.mean()),
            most=float(np.quantile(losses, 0.95)),
            close=float((losses <= CLOSE).mean()),
            sampled_s=self.sampled_s,
            exhaustive_s=all_s,
        )

    def _by_stage(self) -> list[str]:
        """Return contestants out before the final, the last first, anchors before those compared with them."""

        def turn(name: str) -> tuple[int, bool, float]:
            placing = self._placings[name]
            return -placing.stage, placing.anchor != name, placing.log

        return sorted(self._ended, key=turn)

    def _link(self, name: str, placed: Collection[str]) -> Placing:
        """Return the placing that links a contestant to one already placed: its anchor, or for an anchor the leader.

        If that one failed there is no such placing: then use the plain times, without an error.
        """
        assert self.final is not None
        own = self._placings[name]
        link = self._leads.get(own.stage) if own.anchor == name else own
        if link is not None and link.anchor in placed:
            return replace(link, stage=own.stage, rounds=own.rounds)
        fastest, ms = min(((one, median(times.values())) for one, times in self.final.items()), key=lambda one: one[1])
        return replace(own, log=math.log(own.ms / ms), error=math.inf, anchor=fastest)

    def _believed(self, placing: Placing, known: tuple[float, float] | None) -> tuple[float, float]:
        """Return log and error of a placing, shrunk with the mean and variance of the true logs of its stage."""
        lead = self._leads.get(placing.stage)
        if known is None or placing.error == 0.0 or (lead and (placing.anchor, placing.log) == (lead.anchor, lead.log)):
            return placing.log, placing.error
        mean, variance = known
        weight = variance / (variance + placing.error**2)
        return mean + weight * (placing.log - mean), math.sqrt(weight) * placing.error

    def _in_final(self, name: str, pick: str) -> Standing:
        assert self.final is not None
        own, first = self.final[name], self.final[pick]
        middle = median(own.values())
        if name == pick:
            return Standing(
                name=name,
                ratio=1.0,
                ci_low=None,
                ci_high=None,
                median_ms=middle,
                rounds=len(own),
                stage=self.stage,
                ended="picked",
            )
        if not own.keys() & first.keys():
            ratio, low, high = middle / median(first.values()), None, None
        else:
            found = paired_ratio(own, first, tick=self.tick_ms)
            ratio, low, high = found.ratio, found.ci_low, found.ci_high
        return Standing(
            name=name,
            ratio=ratio,
            ci_low=low,
            ci_high=high,
            median_ms=middle,
            rounds=len(own),
            stage=self.stage,
            ended="final",
        )

    def _out_before(self, name: str, log: float, error: float) -> Standing:
        placing, known, pick_ms = self._placings[name], math.isfinite(error), self._pick_ms
        return Standing(
            name=name,
            ratio=math.exp(log),
            median_ms=math.exp(log) * pick_ms,
            rounds=placing.rounds,
            stage=placing.stage,
            ci_low=math.exp(log - TWO_SIDED * error) if known else None,
            ci_high=math.exp(log + TWO_SIDED * error) if known else None,
            ended=self._ended[name],
        )
