"""The history returns what was stored, once, whatever other processes do."""

from __future__ import annotations

import dataclasses
import json
import signal

import pytest
from history_places import as_read, fill, numbered, python
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from attnbench.errors import UsageError
from attnbench.record import PowerSeries, Settings, Time
from attnbench.store import runfile
from attnbench.store.history.entry import sortable
from attnbench.store.history.opening import open_history
from attnbench.store.history.reading import Filters, list_runs, since, text_of
from attnbench.store.history.writing import add
from made_up_run import make_case, make_group, make_run, make_time

TABLES = ("runs", "records", "environments", "series", "points")


def counts(place):
    with open_history(place, write=False) as history, history.begin():
        return {name: history.execute(text(f"SELECT count(*) FROM attnbench_{name}")).scalar() for name in TABLES}


def taken_out(place, run_id):
    with open_history(place, write=False) as history:
        return text_of(history, run_id)[1]


# ── nothing is lost ────────────────────────────────────────────────────────────────────────────────


def test_a_run_comes_out_as_it_went_in(place):
    run = as_read(make_run())
    assert fill(place, [run]) == ["added"]
    assert taken_out(place, run.id) == runfile.dumps(run)
    back = runfile.loads(taken_out(place, run.id))
    assert back == run
    assert back.records[0].time.samples_ms == run.records[0].time.samples_ms
    assert back.records[0].power_w == run.records[0].power_w


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.floats(0.0, 1e6, allow_nan=False)


@st.composite
def runs(draw):
    records = []
    for index, item in enumerate(make_group(make_case(), {"sdpa-flash": 349.0, "flex": 487.0}, samples=6)):
        count = draw(st.integers(1, 9))

        def series(values, count=count):
            return tuple(draw(st.lists(values, min_size=count, max_size=count)))

        samples = [round(value, 7) for value in series(st.floats(1e-6, 1e6))]
        time = make_time(
            list(samples),
            rounds=tuple(range(count)),
            at_s=series(NUMBERS),
            sm_mhz=series(st.none() | st.floats(1.0, 1e5)),
        )
        other = Time(
            timer="events",
            l2=draw(st.none() | st.just("cold")),
            regime=None,
            stopped_by=None,
            num_samples=3,
            median_ms=draw(NUMBERS),
            mean_ms=None,
            min_ms=None,
            max_ms=None,
            p95_ms=None,
            p99_ms=None,
        )
        power = PowerSeries(at_s=series(NUMBERS), watts=series(st.none() | NUMBERS), celsius=series(NUMBERS))
        records.append(
            dataclasses.replace(
                item,
                case={**item.case, "seed": draw(st.integers(-(2**80), 2**80))},
                time=time,
                timers={"events": other},
                power_w=power,
                reason=draw(st.none() | TEXTS),
                notes=(draw(TEXTS),),
                config=draw(st.none() | TEXTS),
                counters={draw(TEXTS): draw(st.none() | NUMBERS)},
                environment=draw(st.sampled_from([None, 0, index, 7])),
            )
        )
    return make_run(
        records,
        suite=draw(TEXTS),
        command=draw(TEXTS),
        started=draw(TEXTS),
        settings=Settings(device="cuda", input=draw(TEXTS)),
    )


@settings(max_examples=25)
@given(run=runs(), number=st.integers(0, 2**32))
def test_any_run_comes_out_as_it_went_in(place, run, number):
    run = as_read(dataclasses.replace(run, id=f"{number:08x}"))
    try:
        fill(place, [run])
    except UsageError:  # two of one id drawn
        return
    assert runfile.loads(taken_out(place, run.id)) == run


def test_half_a_letter_in_a_file_is_kept_as_it_is(place):
    whole = runfile.dumps(as_read(make_run(suite="SUITE")))
    run = runfile.loads(whole.replace("SUITE", "a\\ud800b\\u0000"))
    fill(place, [run])
    assert runfile.loads(taken_out(place, run.id)) == run


def test_a_beginning_of_an_id_is_enough_where_it_is_alone(place):
    fill(place, [numbered(0x12), numbered(0x13)])
    with open_history(place, write=False) as history:
        assert text_of(history, "00000012")[0] == "00000012"
        with pytest.raises(UsageError, match="RUN=0000001 begins 2 ids; one of 00000012, 00000013"):
            text_of(history, "0000001")
        for strange in ("%", "ffff", "0000001_", "\udc80", "\0", ""):
            with pytest.raises(UsageError, match="is not in the history"):
                text_of(history, strange)


# ── once ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_run_twice_changes_nothing(place):
    run = as_read(make_run())
    assert fill(place, [run]) == ["added"]
    before = counts(place)
    assert fill(place, [run, run]) == ["unchanged", "unchanged"]
    assert counts(place) == before
    assert before["records"] == len(run.records)


def test_a_run_that_grew_takes_the_place_of_its_beginning(place):
    run = as_read(make_run())
    begun = as_read(dataclasses.replace(run, records=run.records[:3]))
    assert fill(place, [begun, run, begun]) == ["added", "grown", "older"]
    assert runfile.loads(taken_out(place, run.id)) == run
    assert (counts(place)["runs"], counts(place)["records"]) == (1, len(run.records))


@pytest.mark.parametrize("changed", [{"started": "2025-01-01T00:00:00Z"}, {"command": "attnbench run other"}])
def test_another_run_of_the_same_id_is_refused_and_nothing_is_overwritten(place, changed):
    run = as_read(make_run())
    fill(place, [run])
    with pytest.raises(UsageError, match=f"run={run.id} is the id of another run there"):
        fill(place, [as_read(make_run(**changed))])
    assert runfile.loads(taken_out(place, run.id)) == run


def test_rows_that_a_later_file_lacks_are_not_lost(place):
    run = as_read(make_run())
    fill(place, [as_read(dataclasses.replace(run, records=run.records[:3]))])
    with pytest.raises(UsageError, match="1 rows that this one lacks"):
        fill(place, [as_read(dataclasses.replace(run, records=run.records[1:]))])
    assert len(runfile.loads(taken_out(place, run.id)).records) == 3


def test_series_and_environments_are_shared_between_runs(place):
    fill(place, [numbered(number) for number in range(4)])
    found = counts(place)
    assert (found["runs"], found["points"], found["series"], found["environments"]) == (4, 8, 2, 1)


# ── lists ──────────────────────────────────────────────────────────────────────────────────────────


def test_runs_are_listed_newest_first_and_filtered(place):
    fill(place, [numbered(2), numbered(0, suite="other"), numbered(1)])
    with open_history(place, write=False) as history:
        assert [run.id for run in list_runs(history)] == ["00000002", "00000001", "00000000"]
        assert [run.id for run in list_runs(history, Filters(suite="other"))] == ["00000000"]
        assert [run.id for run in list_runs(history, Filters(since=since("2026-01-02")))] == ["00000002", "00000001"]
        [newest] = list_runs(history, Filters(limit=1))
    assert (newest.machine, newest.rows, newest.outcomes) == ("NVIDIA H200", 2, {"passed": 2})


@pytest.mark.parametrize(
    ("spelled", "sorts_as"),
    [
        ("2026-11-20T12:34:56Z", "2026-11-20T12:34:56Z"),
        ("2026-11-20T14:34:56.9+02:00", "2026-11-20T12:34:56Z"),
        ("2026-11-20 12:34", "2026-11-20T12:34:00Z"),
        ("2026-11-20", "2026-11-20T00:00:00Z"),
        ("some day", "some day"),
    ],
)
def test_times_of_any_zone_are_put_in_order(spelled, sorts_as):
    assert sortable(spelled) == sorts_as


def test_days_back_are_a_time():
    from datetime import UTC, datetime

    assert since("30d", datetime(2026, 3, 1, tzinfo=UTC)) == "2026-01-30T00:00:00Z"
    with pytest.raises(UsageError, match="--since=yesterday is no time"):
        since("yesterday")


# ── several processes ──────────────────────────────────────────────────────────────────────────────

WRITER = """
import sys
from history_places import numbered
from attnbench.store.history.opening import open_history
from attnbench.store.history.place import find_place
from attnbench.store.history.writing import add
url, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
runs = [numbered(number) for number in [*range(first, first + count), 500]]
print("ready", flush=True)
sys.stdin.readline()
for run in runs:
    with open_history(find_place(url, "."), write=True) as history:
        print(add(history, run), flush=True)
"""


def test_several_processes_make_and_fill_one_history_at_once(url, place):
    import subprocess

    writers = [python(WRITER, url, 20 * index, 6, stdin=subprocess.PIPE) for index in range(4)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n", writer.communicate()[1][-2000:]
    for writer in writers:  # all at once, into a history that is not there yet
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [writer.communicate() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 4, said
    words = [out.split() for out, _ in said]
    assert all(one[:6] == ["added"] * 6 for one in words)
    assert sorted(one[6] for one in words) == ["added", "unchanged", "unchanged", "unchanged"]
    with open_history(place, write=False) as history:
        ids = {run.id for run in list_runs(history)}
    assert ids == {f"{20 * index + number:08x}" for index in range(4) for number in range(6)} | {f"{500:08x}"}
    assert taken_out(place, f"{45:08x}") == runfile.dumps(numbered(45))


KILLED = """
import os, signal, sys
from sqlalchemy import event
from sqlalchemy.engine import Engine
from history_places import numbered
from attnbench.store.history.opening import open_history
from attnbench.store.history.place import find_place
from attnbench.store.history.writing import add

def kill(connection, cursor, statement, *rest):
    if "INSERT INTO attnbench_points" in statement:
        os.kill(os.getpid(), signal.SIGKILL)

with open_history(find_place(sys.argv[1], "."), write=True) as history:
    event.listen(Engine, "after_cursor_execute", kill)
    add(history, numbered(1))
"""


def test_a_process_killed_while_adding_leaves_what_was_there(url, place):
    fill(place, [numbered(0)])
    before = counts(place)
    writer = python(KILLED, url)
    _, said = writer.communicate()
    assert writer.returncode == -signal.SIGKILL, said
    assert counts(place) == before
    assert fill(place, [numbered(1)]) == ["added"]
    assert taken_out(place, "00000000") == runfile.dumps(numbered(0))


def test_a_damaged_record_is_said_not_read(sqlite):
    fill(sqlite, [numbered(0)])
    with open_history(sqlite, write=True) as history, history.begin():
        history.execute(text("UPDATE attnbench_records SET body = substr(body, 1, 40) WHERE place = 1"))
    with pytest.raises(UsageError, match="RUN=00000000 is damaged in the history; its run file"):
        taken_out(sqlite, "00000000")


def test_a_run_without_records_is_a_run(place):
    run = as_read(make_run([]))
    assert fill(place, [run]) == ["added"]
    assert runfile.loads(taken_out(place, run.id)) == run
    with open_history(place, write=False) as history:
        assert [item.rows for item in list_runs(history)] == [0]
        assert json.dumps(dict(list_runs(history)[0].outcomes)) == "{}"


def test_adding_within_one_connection_goes_on_after_a_refusal(place):
    with open_history(place, write=True) as history:
        add(history, as_read(make_run()))
        with pytest.raises(UsageError, match="another run"):
            add(history, as_read(make_run(started="2020-01-01T00:00:00Z")))
        assert add(history, numbered(3)) == "added"
