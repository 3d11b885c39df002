"""The search for the highest rate: bracketing, bisection, its end, and its report."""

from __future__ import annotations

import dataclasses

import pytest

from attnbench.loadtest.gaps import is_possible
from attnbench.loadtest.run import highest_rate
from attnbench.presentation.load import few_requests, sentence
from attnbench.store import load_file
from attnbench.store.load_file import Highest, Point


def at(rate: float, *, limit: float, issued: int = 200) -> Point:
    """A server that answers in time below `limit`, above it only part of its requests."""
    good = issued if rate <= limit else round(0.98 * issued)
    latency = (10.0,) * good + (900.0,) * (issued - good)
    return Point(
        scenario="server",
        generator="x",
        asked_rate=rate,
        offered_rate=rate,
        achieved_rate=rate,
        load_s=1.0,
        whole_s=1.0,
        issued=issued,
        answered=issued,
        latency_ms=latency,
        queue_ms=(1.0,) * issued,
        at_s=(0.0,) * issued,
    )


@pytest.mark.parametrize(("limit", "start"), [(700.0, 100.0), (700.0, 3000.0), (100.0, 100.0), (1.5, 60.0)])
def test_the_highest_rate_is_bracketed_and_bisected(limit: float, start: float) -> None:
    tried: list[float] = []

    def measure(rate: float) -> Point:
        tried.append(rate)
        return at(rate, limit=limit)

    found = highest_rate(measure, 50.0, start, most_probes=20)
    assert found is not None
    assert 0.94 * limit <= found <= limit
    assert len(tried) <= 13
    assert len(set(tried)) == len(tried)


def test_a_limit_that_few_requests_meet_is_no_percentile() -> None:
    assert few_requests(at(100.0, limit=200.0)) == few_requests(None) == ""
    few = dataclasses.replace(at(100.0, limit=200.0), issued=40)
    said = few_requests(few)
    assert said == "by all of 40 requests: too few for a 99th percentile, a longer --duration"
    assert f"within 50 ms ({said})" in sentence(Highest(slo_ms=50.0, rate=100.0, note=said))


def test_a_rate_that_is_never_met_ends_the_search() -> None:
    tried: list[float] = []
    assert highest_rate(lambda rate: (tried.append(rate), at(rate, limit=0.0))[1], 50.0, 100.0) is None
    assert len(tried) == 12
    tried.clear()
    assert (
        highest_rate(
            lambda rate: (tried.append(rate), at(rate, limit=0.0))[1],
            50.0,
            20.0,
            possible=lambda rate: is_possible(rate, 0.5),
        )
        is None
    )
    assert tried == [20.0, 10.0, 5.0, 2.5, 1.25], "0.625 requests a second are none in half a second"
    refused = at(10.0, limit=20.0)
    refused = load_file.dataclasses.replace(refused, issued=210, refused={"backlog": 10})
    assert highest_rate(lambda rate: refused, 50.0, 10.0, most_probes=3) is None, "a refused request is not in time"
    assert sentence(Highest(slo_ms=50.0, rate=None)) == "no rate tried has 99 % of requests within 50 ms"
