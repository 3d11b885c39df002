"""Arrival times of requests: gaps of users, replays, and the processes that issue them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from attnbench.cli import main
from attnbench.datasets.processed import BATCHES, INFERENCE
from attnbench.errors import AttnbenchError, UsageError
from attnbench.loadtest import loadgen_files
from attnbench.loadtest.gaps import arrivals
from attnbench.loadtest.generator import Arrival, Generator, by_loadgen, generator_cores, own_cores, scheduled
from attnbench.loadtest.issuing.loadgen import SCHEDULE_SEED, Settings
from attnbench.loadtest.issuing.wire import RECORD, pack, unpack
from attnbench.loadtest.ledger import Ledger
from attnbench.loadtest.loadgen_rate import rate_for_loadgen, unit_gaps
from attnbench.loadtest.replay import Replay
from attnbench.loadtest.run import loadgen_schedule
from attnbench.loadtest.serving import Refused
from attnbench.loadtest.users import Policy
from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.request import Request

TINY = config_of("tiny")


@pytest.mark.parametrize(
    ("users", "rate", "duration", "burstiness"),
    [(20, 200.0, 10.0, 0.5), (1, 2000.0, 1.0, 1.0), (500, 50.0, 2.0, 0.1), (50, 0.4, 5.0, 100.0), (3, 1.0, 1.0, 0.02)],
)
def test_gaps_have_the_rate_asked_for_and_every_user_comes_back(users, rate, duration, burstiness) -> None:
    due, whose = arrivals(users=users, rate=rate, duration_s=duration, burstiness=burstiness, seed=3)
    count = round(rate * duration)
    assert len(due) == len(whose) == count
    assert (np.diff(due) >= 0).all()
    assert due[-1] == round(duration * 1e9)
    assert due[0] >= 0
    assert 0 <= whose.min() <= whose.max() < users
    again = arrivals(users=users, rate=rate, duration_s=duration, burstiness=burstiness, seed=3)
    np.testing.assert_array_equal(due, again[0])
    np.testing.assert_array_equal(whose, again[1])


def test_gaps_below_one_come_in_bursts_and_far_above_are_regular() -> None:
    def variation(burstiness: float) -> float:
        due, whose = arrivals(users=10, rate=2000.0, duration_s=10.0, burstiness=burstiness, seed=0)
        gaps = [np.diff(due[whose == user]) for user in range(10)]
        return float(np.mean([gap.std() / gap.mean() for gap in gaps if len(gap) > 50]))

    assert variation(0.25) == pytest.approx(2.0, rel=0.15)  # 1 / sqrt(shape)
    assert variation(1.0) == pytest.approx(1.0, rel=0.1)
    assert variation(100.0) == pytest.approx(0.1, rel=0.2)


def test_a_load_without_a_request_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--rate=0\.1 gives 0 requests in 1 s"):
        arrivals(users=2, rate=0.1, duration_s=1.0, burstiness=1.0, seed=0)


# ── processes ──────────────────────────────────────────────────────────────────────────────────────


def all_of(generator: Generator, *, answer: bool = False) -> list[Arrival]:
    found: list[Arrival] = []
    while not generator.over:
        new = generator.take(5.0)
        found += new
        if answer and new:
            generator.answered([one.number for one in new])
    return found


def test_records_may_be_cut_anywhere() -> None:
    data = pack((number, 2 * number, -number) for number in range(5))
    rest, found = b"", []
    for start in range(0, len(data), 7):
        some, rest = unpack(rest + data[start : start + 7])
        found += some
    assert found == [(number, 2 * number, -number) for number in range(5)]
    assert rest == b""
    assert len(data) == 5 * RECORD.size


def test_our_generator_issues_each_request_once_never_early() -> None:
    due = [0, 0, 1_000_000, 1_000_000, 40_000_000]
    with scheduled(due) as generator:
        found = all_of(generator)
        generator.check()
    assert [one.index for one in found] == [0, 1, 2, 3, 4]
    assert generator.origin_ns is not None
    assert all(one.issued_ns >= generator.origin_ns + at for one, at in zip(found, due, strict=True))
    assert generator.all_issued
    assert not generator.lost


def test_a_generator_that_dies_is_named_and_ends_the_load() -> None:
    with Generator("attnbench.loadtest.issuing.schedule", b"\x05", wants_answers=False) as generator:
        assert all_of(generator) == []
        assert generator.lost
        with pytest.raises(AttnbenchError, match=r"load: the generator's process ended before it was done: struct"):
            generator.check()
    with scheduled([10**12]) as generator:
        generator._process.kill()
        assert all_of(generator) == []
        with pytest.raises(AttnbenchError, match=r"ended before it was done: killed by SIGKILL$"):
            generator.check()


@pytest.mark.parametrize("scenario", ["Server", "Offline"])
def test_loadgen_issues_in_a_process_of_its_own_and_its_trace_has_the_schedule(scenario: str, tmp_path: Path) -> None:
    pytest.importorskip("mlperf_loadgen")
    settings = Settings(
        scenario=scenario, rate=200.0, duration_ms=300, slo_ms=50.0, samples=10, seed=1, folder=str(tmp_path)
    )
    ledger = Ledger()
    with by_loadgen(settings) as generator:
        for one in all_of(generator, answer=True):
            ledger.arrive(one.index, one.issued_ns)
        generator.check()
    ledger.close(max(ledger.issued_ns), "not served here")
    schedule, notes = loadgen_schedule(ledger, generator, tmp_path)
    assert notes == []
    assert len(schedule.due_ns) == len(ledger.index) > 20
    assert set(ledger.index) <= set(range(10))
    late = [at - due for at, due in zip(ledger.issued_ns, schedule.due_ns, strict=True)]
    assert min(late) >= 0
    assert schedule.latency_ns is not None
    assert min(schedule.latency_ns) > 0
    assert "result" in schedule.words
    if scenario == "Offline":
        assert len(set(schedule.due_ns)) == 1
    ledger.index[0] = 11 - ledger.index[0]
    with pytest.raises(AttnbenchError, match="samples that are not the"):
        loadgen_schedule(ledger, generator, tmp_path)


def test_a_trace_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    line = (
        '{{"name":"Sample","cat":"default","ph":"b","pid":1,"id":0,"ts":1.5,"args":{{"sample_seq":{},"query_seq":0,'
        '"sample_idx":4,"issue_start_ns":70,"complete_ns":80}}}},\n'
    )
    trace = tmp_path / loadgen_files.TRACE
    trace.write_text(line.format(1) + line.format(0))
    assert [(one.index, one.scheduled_ns, one.issued_ns, one.done_ns) for one in loadgen_files.samples(tmp_path)] == [
        (4, 1500, 70, 80)
    ] * 2
    trace.write_text(line.format(0) + line.format(2))
    with pytest.raises(AttnbenchError, match="has not every sample once"):
        loadgen_files.samples(tmp_path)
    trace.unlink()
    with pytest.raises(AttnbenchError, match="cannot be read"):
        loadgen_files.samples(tmp_path)


# ── replay ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    features = "1,2,3,4,5"
    days = [
        "user_id,date,video_id,time_ms,action_weights,play_time_ms,duration_ms,interval_indptr,num_intervals,"
        "user_active_degree,follow_user_num_range,fans_user_num_range,friend_user_num_range,register_days_range"
    ]

    def day(user: int, date: int, items: list[int], first: int, indptr: list[int]) -> None:
        lists = [items, [first + at for at in range(len(items))], [1] * len(items), [0] * len(items), [9] * len(items)]
        fields = [
            str(user),
            str(date),
            *(f'"{json.dumps(one)}"' for one in lists),
            f'"{json.dumps(indptr)}"',
            str(len(indptr) - 1),
            features,
        ]
        days.append(",".join(fields))

    day(7, 20220409, [104, 105], 5_000, [0, 2])  # dates in any order
    day(7, 20220408, [101, 102, 103], 1_000, [0, 1, 3])
    day(8, 20220408, [201], 1_500, [0, 1])
    (tmp_path / INFERENCE).write_text("\n".join(days) + "\n")
    lines = [
        "user_id,date,interval_end_ts,interval_indptr",
        "7,20220408,1000,1",
        "8,20220408,1500,1",
        "99,20220408,1600,1",
        "7,20220408,2000,3",
        "7,20220410,2500,1",
        "7,20220409,5000,2",
        "8,20220408,9000,2",
    ]
    (tmp_path / BATCHES).write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_replay_asks_for_each_line_with_the_history_until_then(prepared: Path) -> None:
    replay = Replay(prepared, TINY, candidates=2, policy=Policy(TINY))
    found = [replay.take(number) for number in range(len(replay.lines))]
    asked = {number: one for number, one in enumerate(found) if isinstance(one, Request)}
    assert {number: (one.user, len(one.items), len(one.candidates)) for number, one in asked.items()} == {
        0: (7, 1, 2),
        1: (8, 1, 0),
        3: (7, 3, 2),
        5: (7, 5, 0),
    }
    np.testing.assert_array_equal(asked[5].items[:3], asked[3].items)  # a later date continues the earlier one
    np.testing.assert_array_equal(asked[3].candidates, asked[5].items[3:])
    assert all((one.items < TINY.items).all() and (one.actions < TINY.actions).all() for one in asked.values())
    reasons = [found[number] for number in (2, 4, 6)]
    assert [one.reason for one in reasons if isinstance(one, Refused)] == [
        "unknown user",
        "not in the user's history",
        "not in the user's history",
    ]
    assert replay.tokens(TINY) == [2 + 2 * 5, 2 + 2 * 1]


def test_a_request_before_anything_was_done_on_a_date_has_the_dates_before(prepared: Path) -> None:
    """No interaction of a day that the files do not have is no contradiction, and a user may have done nothing yet."""
    lines = ["user_id,date,interval_end_ts,interval_indptr"]
    lines += ["7,20220407,100,0", "7,20220408,500,0", "7,20220410,6000,0", "8,20220409,7000,0", "7,20220410,8000,1"]
    (prepared / BATCHES).write_text("\n".join(lines) + "\n")
    replay = Replay(prepared, TINY, candidates=2, policy=Policy(TINY))
    found = [replay.take(number) for number in range(5)]
    asked = [(len(one.items), len(one.candidates)) for one in found if isinstance(one, Request)]
    assert asked == [(0, 2), (0, 2), (5, 0), (1, 0)]
    assert isinstance(found[4], Refused)
    assert found[4].example == "user 7, date 20220410: 1 interactions of 0"


def test_a_replay_of_one_user_has_its_lines_alone(prepared: Path) -> None:
    replay = Replay(prepared, TINY, candidates=2, policy=Policy(TINY), only_user=7)
    assert {line.user for line in replay.lines} == {7}
    assert replay.numbers() == [7]
    first = replay.take(0)
    assert isinstance(first, Request)
    assert (first.user, len(first.items)) == (7, 1)
    with pytest.raises(UsageError, match=f"^load: --only-user=12345 has no line in {BATCHES}; a user of --source$"):
        Replay(prepared, TINY, candidates=2, policy=Policy(TINY), only_user=12345)


def test_a_replay_is_compressed_to_the_rate_asked_for(prepared: Path) -> None:
    replay = Replay(prepared, TINY, candidates=2, policy=Policy(TINY))
    due = replay.due_ns(rate=10.0, duration_s=100.0)
    assert len(due) == 7
    assert due[0] == 0
    assert due[-1] == 700_000_000
    assert due[1] == pytest.approx(0.5 / 8.0 * 0.7e9, rel=1e-6)
    assert len(replay.due_ns(rate=10.0, duration_s=0.4)) == 4


def test_a_replay_of_files_that_are_not_there_or_broken_is_one_line(prepared: Path, tmp_path: Path, capsys) -> None:
    (prepared / BATCHES).write_text("user_id,date,interval_end_ts,interval_indptr\n7,20220408,x,1\n")
    line = ["load", "hstu-serving", "--device", "cpu", "--config", "tiny", "--source"]
    assert main([*line, str(prepared)]) == 2
    assert f"{BATCHES}:2: interval_end_ts='x' is no number" in capsys.readouterr().err
    (prepared / BATCHES).write_text("user_id,date,interval_end_ts,interval_indptr\n")
    assert main([*line, str(prepared)]) == 2
    assert "has no batches" in capsys.readouterr().err
    assert main([*line, str(tmp_path / "nowhere")]) == 2
    assert (
        "nowhere is not there; a folder of prepared files; attnbench data kuairand-1k --to DIR writes them"
        in capsys.readouterr().err
    )


def test_loadgen_is_told_the_rate_that_brings_the_requests_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("mlperf_loadgen")
    given, queries = rate_for_loadgen(400.0, 0.5, SCHEDULE_SEED + 7)
    assert queries == 200
    assert given != 400.0
    settings = Settings(
        scenario="Server",
        rate=given,
        duration_ms=499,
        slo_ms=50.0,
        queries=queries,
        samples=10,
        seed=7,
        folder=str(tmp_path),
    )
    with by_loadgen(settings) as generator:
        assert len(all_of(generator, answer=True)) == 200
    due = [one.scheduled_ns for one in loadgen_files.samples(tmp_path)]
    assert due[-1] - due[0] == pytest.approx(0.5e9, abs=1000)
    gaps = np.diff(due)
    np.testing.assert_allclose(gaps, unit_gaps(199, SCHEDULE_SEED + 7) / given * 1e9, atol=3)
    assert rate_for_loadgen(1.0, 1.0, 0) == (1.0, 1)


def test_the_generator_has_cores_of_its_own_while_it_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 8})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: set_to.append((pid, set(cores))))
    with own_cores():
        assert generator_cores() == {3, 8}
        with scheduled([0]) as generator:
            all_of(generator)
    assert set_to[0] == (0, {0, 1, 2})
    assert set_to[1][0] > 0
    assert set_to[1][1] == {3, 8}
    assert set_to[2] == (0, {0, 1, 2, 3, 8})
    assert generator_cores() == set()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    with own_cores():
        assert generator_cores() == set()
    assert len(set_to) == 3
