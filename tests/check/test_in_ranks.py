"""Inspections of launches that compute in other processes: reading and loading pass through host memory."""

from __future__ import annotations

import time

import pytest

from attnbench.backends.base import Budget
from attnbench.check.inspection import Inspection
from attnbench.check.reference import References

from .launches import Session, SumCase, SumWorkload

SLOW_S = 0.02
"""Reading takes so much longer than a call."""


class InRanks(SumWorkload):
    in_ranks = True


class SlowToRead(Session):
    """The first read after a call collects the output from ranks; the next has it already."""

    def forward(self):
        super().forward()
        self.collected = False

    def launch(self):
        made = super().launch()
        read = made.outputs

        def outputs():
            if not self.collected:
                time.sleep(SLOW_S)
                self.collected = True
            return read()

        made.outputs = outputs
        return made


class Stale(SlowToRead):
    """Answers every call with the output of the first."""

    first = None

    def compute(self):
        if self.first is None:
            self.first = super().compute()
        return self.first


def looked_at(workload, kind, looks):
    """The first fault that some looks find in samples of 1 ms."""
    case = SumCase(mode="fwd")
    group = References(workload, case, *(workload.inputs(case, seed=seed) for seed in (1, 2)))
    launch = kind(case, group.first.inputs).launch()
    look = Inspection(launch, group, variant="mean", budget=Budget())
    launch.forward()
    for _ in range(looks):
        look.disturb()
        launch.forward()
        look.prepare()
        launch.forward()
        if fault := look.finish(None, 1.0, 1.0, 1.0, 0.0):
            return fault
    return None


@pytest.mark.usefixtures("at_once")
def test_reading_may_take_long_where_ranks_compute_only():
    assert looked_at(InRanks(), SlowToRead, 40) is None
    assert "unfinished work" in looked_at(SumWorkload(), SlowToRead, 40)


@pytest.mark.usefixtures("at_once")
def test_ranks_that_answer_with_earlier_data_are_found():
    assert looked_at(InRanks(), Stale, 1).startswith("in a timed call on new data: ")
