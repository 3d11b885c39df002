"""KuaiRand's own files, NVIDIA's three files written and read back, and the place named for every broken field."""

from __future__ import annotations

import csv
import json
import random
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from attnbench.cli import main
from attnbench.datasets import drawn, kuairand
from attnbench.datasets.history import ACTIONS, FEATURES, LISTS, intervals
from attnbench.datasets.processed import (
    BATCHES,
    BATCHES_COLUMNS,
    INFERENCE,
    INFERENCE_COLUMNS,
    SEQS,
    SEQS_COLUMNS,
    read_batches,
    read_days,
    read_sequences,
    write,
)
from attnbench.errors import UsageError

LOG = (
    "user_id",
    "video_id",
    "date",
    "hourmin",
    "time_ms",
    *ACTIONS[:6],
    "long_view",
    "play_time_ms",
    "duration_ms",
    "is_profile_enter",
    "tab",
)
DAY = 20220408


def row(user, video, time, *, date=DAY, acts=(), play=5, duration=9):
    values = {
        "user_id": user,
        "video_id": video,
        "date": date,
        "hourmin": 1200,
        "time_ms": time,
        "play_time_ms": play,
        "duration_ms": duration,
        "tab": 1,
    } | {name: int(name in acts) for name in ACTIONS}
    return [values[name] for name in LOG]


FIRST = [
    row(7, 70, 5000, acts=("is_click",)),
    row(8, 80, 100),
    row(7, 71, 1000, acts=("long_view", "is_profile_enter")),
]
SECOND = [row(8, 81, 90_000_000, date=DAY + 1), row(7, 72, 66_000, acts=ACTIONS), row(7, 73, 66_000), row(9, 90, 10)]
USERS = [
    [8, "full_active", "x", "(0,10]", "0", "0", "0"],
    [7, "high", "x", "(0,10]", "[1,10)", "0", "366-730"],
    [9, "high", "x", "0", "0", "0", "0"],
]
USER_COLUMNS = ("user_id", "user_active_degree", "is_lowactive_period", *FEATURES[1:])


def table(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "KuaiRand-1K" / "data"
    folder.mkdir(parents=True)
    table(folder / kuairand.LOGS[0], LOG, FIRST)
    table(folder / kuairand.LOGS[1], LOG, SECOND)
    table(folder / kuairand.USERS, USER_COLUMNS, USERS)
    return folder


def test_users_of_both_periods_in_the_order_of_time(source):
    found = kuairand.read(source)
    assert [one.user_id for one in found] == [8, 7]  # 9 is in the second period alone
    eight, seven = found
    assert seven.video_id.tolist() == [71, 70, 72, 73]  # equal times in the order of the files
    assert seven.time_ms.tolist() == [1000, 5000, 66_000, 66_000]
    assert seven.action_weights.tolist() == [64 + 128, 1, 255, 0]
    assert seven.features == (2, 1, 2, 1, 2)
    assert eight.features == (1, 1, 1, 1, 1)
    assert eight.date.tolist() == [DAY, DAY + 1]
    assert [places.tolist() for _, places in eight.days()] == [[0], [1]]


def test_a_date_that_comes_again_is_one_day(source, tmp_path):
    """A replay finds a user's day by its date: two lines of one date would give one of them another history."""
    seven = replace(kuairand.read(source)[1], date=np.array([DAY, DAY + 1, DAY, DAY + 1]))
    assert [(date, places.tolist()) for date, places in seven.days()] == [(DAY, [0, 2]), (DAY + 1, [1, 3])]
    assert list(replace(seven, date=seven.date[:0]).days()) == []
    write([seven], tmp_path / "out")
    assert [day.video_id.tolist() for day, _ in read_days(tmp_path / "out" / INFERENCE)] == [[71, 72], [70, 73]]


@pytest.mark.parametrize("place", ["", "..", "../.."], ids=["data", "KuaiRand-1K", "above"])
def test_the_folder_may_be_one_above(source, place):
    assert len(kuairand.read(source / place)) == 2


def test_the_archive_itself_is_read(source, tmp_path):
    archive = tmp_path / "KuaiRand-1K.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(source.parent, "KuaiRand-1K")
    found = kuairand.read(archive)
    assert [one.user_id for one in found] == [8, 7]
    assert found[1].video_id.tolist() == [71, 70, 72, 73]


def test_a_damaged_archive_is_refused_wherever_the_damage_is(source, tmp_path):
    """A bit that turned over may make other numbers of some, which only the checksum tells."""
    drawn = random.Random(3)
    rows = [row(drawn.choice([7, 8]), drawn.randrange(10**9), drawn.randrange(10**13)) for _ in range(300)]
    for name, some in zip(kuairand.LOGS, (rows[:150], rows[150:]), strict=True):
        table(source / name, LOG, some)
    whole, damaged = tmp_path / "whole.tar.gz", tmp_path / "damaged.tar.gz"
    with tarfile.open(whole, "w:gz") as file:
        file.add(source.parent, "KuaiRand-1K")
    data = whole.read_bytes()
    assert len(kuairand.read(whole)) == 2
    for at in range(20, len(data), len(data) // 60):
        damaged.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(UsageError) as refused:
            kuairand.read(damaged)
        assert "\n" not in str(refused.value)


def spoiled(source, name, change):
    path = source / name
    path.write_text(change(path.read_text()))


BROKEN = {
    f"{kuairand.LOGS[0]}:1: columns=is_like are missing": (0, lambda text: text.replace("is_like", "liked")),
    f"{kuairand.LOGS[0]}:3: time_ms='soon' cannot be used; a whole number from 0": (
        0,
        lambda text: text.replace(",100,", ",soon,"),
    ),
    f"{kuairand.LOGS[0]}:2: is_click='2' cannot be used; 0 to 1": (0, lambda text: text.replace("5000,1,", "5000,2,")),
    f"{kuairand.LOGS[1]}:4: fields=3 are not a row; 16": (
        1,
        lambda text: "\n".join("1,2,3" if at == 3 else line for at, line in enumerate(text.splitlines())),
    ),
    f"{kuairand.LOGS[1]}:2: video_id='-81' cannot be used": (1, lambda text: text.replace("8,81,", "8,-81,")),
}


@pytest.mark.parametrize("said", BROKEN, ids=lambda said: said[-30:])
def test_a_broken_line_is_named(source, said):
    which, change = BROKEN[said]
    spoiled(source, kuairand.LOGS[which], change)
    with pytest.raises(UsageError) as refused:
        kuairand.read(source)
    assert str(refused.value).startswith("kuairand-1k: " + said)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_rows_read_at_once_or_one_by_one_are_the_same(tmp_path, monkeypatch, at_once, ending):
    """Plain numbers are read by numpy; from a row that is quoted on, each by itself, and a wrong one is named."""
    drawn = random.Random(1)
    logs = {name: [row(drawn.randrange(3), n, drawn.randrange(9)) for n in range(40)] for name in kuairand.LOGS}
    table(tmp_path / kuairand.USERS, USER_COLUMNS, [[user, *"abcdef"] for user in range(3)])
    wanted = {}
    for user in range(3):
        mine = [one for name in kuairand.LOGS for one in logs[name] if one[0] == user]
        wanted[user] = [one[1] for one in sorted(mine, key=lambda one: one[4])]
    told = []
    monkeypatch.setattr(kuairand, "EVERY", 30)
    for quoted in (None, 0, 17, 39):
        for name, rows in logs.items():
            lines = [",".join(map(str, one)) for one in [LOG, *rows]]
            if quoted is not None:
                lines[1 + quoted] = f'"{rows[quoted][0]}"' + lines[1 + quoted][1:]
            (tmp_path / name).write_bytes((ending.join(lines) + ending).encode())
        monkeypatch.setattr(kuairand, "AT_ONCE", at_once)
        found = kuairand.read(tmp_path, told.append)
        assert {one.user_id: one.video_id.tolist() for one in found} == wanted
        assert all(one.date.tolist() == [DAY] * len(one.date) for one in found)
        for bad, said in (("9", "is_click='9' cannot be used; 0 to 1"), ("", "is_click='' cannot be used")):
            broken = [*lines[:31], lines[31].replace(",0,", f",{bad},", 1), *lines[32:]]
            (tmp_path / kuairand.LOGS[1]).write_text("\n".join(broken))
            with pytest.raises(UsageError, match=rf"{kuairand.LOGS[1]}:32: {said}"):
                kuairand.read(tmp_path)
        (tmp_path / kuairand.LOGS[1]).write_text("\n".join([*lines[:31], lines[31] + ",1", *lines[32:]]))
        with pytest.raises(UsageError, match=rf"{kuairand.LOGS[1]}:32: fields=17 are not a row; 16"):
            kuairand.read(tmp_path)
    assert told.count(f"{kuairand.LOGS[0]}: 1 million rows") == 4, "said once each time, at row 30 of 40"


def test_what_is_not_there_says_where_it_is_to_be_had(source, tmp_path, capsys):
    (source / kuairand.USERS).unlink()
    with pytest.raises(UsageError, match=r"has no user_features_1k\.csv; .*; get it by: curl -LO https://zenodo\.org"):
        kuairand.read(source)
    (tmp_path / "no.tar.gz").write_bytes(b"nothing")
    assert main(["data", "kuairand-1k", "--source", str(tmp_path / "no.tar.gz")]) == 2
    said = capsys.readouterr().err
    assert said.endswith(
        "no.tar.gz is no archive, or damaged at its beginning; the folder of KuaiRand-1K, or its archive\n"
    )
    assert said.count("\n") == 1


def test_a_user_twice_and_no_user_in_both(source):
    spoiled(source, kuairand.USERS, lambda text: text.replace("\n7,", "\n8,"))
    with pytest.raises(UsageError, match=r"user_features_1k\.csv:3: user_id=8 is there twice; each user once"):
        kuairand.read(source)
    spoiled(source, kuairand.USERS, lambda text: "\n".join(text.splitlines()[:1]) + "\n")
    with pytest.raises(UsageError, match=r"users=0 are in user_features_1k\.csv and in both logs"):
        kuairand.read(source)


def test_intervals_begin_with_an_interaction():
    assert intervals(np.array([], dtype=np.int64), 60) == [0]
    assert intervals(np.array([0, 59, 60, 61, 119, 120, 400]), 60) == [0, 2, 5, 6, 7]


@pytest.mark.parametrize("make", [kuairand.read, lambda source: drawn.draw(3, 5)], ids=["real", "drawn"])
def test_what_is_written_is_read_back(source, tmp_path, make):
    users = list(make(source))
    summary = write(users, tmp_path / "out")
    back = list(read_sequences(tmp_path / "out" / SEQS))
    days = list(read_days(tmp_path / "out" / INFERENCE))
    batches = list(read_batches(tmp_path / "out" / BATCHES))
    for one, again in zip(users, back, strict=True):
        assert (one.user_id, one.features) == (again.user_id, again.features)
        of_days = [day for day, _ in days if day.user_id == one.user_id]
        for name in LISTS:
            assert getattr(one, name).tolist() == getattr(again, name).tolist()
            assert np.concatenate([getattr(day, name) for day in of_days]).tolist() == getattr(one, name).tolist()
    assert summary.interactions == sum(len(one.video_id) for one in users)
    ends = {(user, date, end): when for user, date, when, end in batches}
    assert len(ends) == len(batches) == summary.batches == sum(len(indptr) - 1 for _, indptr in days)
    for day, indptr in days:
        for end in indptr[1:]:
            assert ends[day.user_id, int(day.date[0]), end] == day.time_ms[end - 1]
        starts = day.time_ms[indptr[:-1]]
        assert (np.diff(starts) >= 60_000).all()
    assert [batch[2] for batch in batches] == sorted(batch[2] for batch in batches)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([SEQS, INFERENCE, BATCHES])


def test_the_columns_are_nvidias(source, tmp_path):
    write(kuairand.read(source), tmp_path)
    headers = {name: (tmp_path / name).read_text().splitlines()[0].split(",") for name in (SEQS, INFERENCE, BATCHES)}
    features = [
        "user_active_degree",
        "follow_user_num_range",
        "fans_user_num_range",
        "friend_user_num_range",
        "register_days_range",
    ]
    lists = ["video_id", "time_ms", "action_weights", "play_time_ms", "duration_ms"]
    assert headers == {
        SEQS: ["user_id", *lists, *features],
        INFERENCE: ["user_id", "date", *lists, "interval_indptr", "num_intervals", *features],
        BATCHES: ["user_id", "date", "interval_end_ts", "interval_indptr"],
    }
    assert tuple(map(tuple, headers.values())) == (SEQS_COLUMNS, INFERENCE_COLUMNS, BATCHES_COLUMNS)
    with (tmp_path / SEQS).open(newline="") as file:
        assert json.loads(next(csv.DictReader(file))["video_id"]) == [80, 81]


SPOILED = {
    (SEQS, "1: columns=video_id are missing"): ("video_id", "video"),
    (SEQS, "2: video_id='[80, 81' is a broken list; a JSON list of whole numbers from 0"): ('"[80, 81]"', '"[80, 81"'),
    (SEQS, "2: video_id='[80, \"x\"]' is no list of numbers"): ('"[80, 81]"', '"[80, ""x""]"'),
    (SEQS, "2: video_id='[80, true]' is no list of numbers"): ('"[80, 81]"', '"[80, true]"'),
    (SEQS, "2: time_ms=1 numbers are not as many as video_id has; 2"): ('"[100, 90000000]"', "[100]"),
    (SEQS, "2: time_ms=a list goes back; the order of time"): ('"[100, 90000000]"', '"[100, 9]"'),
    (SEQS, "3: action_weights=256 is no mask of eight actions; 0 to 255"): ("255", "256"),
    (SEQS, "2: user_id='eight' is no number"): ("\n8,", "\neight,"),
    (INFERENCE, "2: interval_indptr='[0, 2]' is no list of ends; rising from 0 to 1"): ('"[0, 1]"', '"[0, 2]"'),
    (INFERENCE, "2: num_intervals=5 is not what interval_indptr has; 1"): ('"[0, 1]",1', '"[0, 1]",5'),
    (INFERENCE, "2: fields=3 are not a row; 14"): ("\n8,", "\n1,2,3\n8,"),
    (INFERENCE, f"3: date={DAY} is there twice for user 8; each date of a user once"): (str(DAY + 1), str(DAY)),
    (BATCHES, "3: interval_end_ts=4 is before the line above; the order of time"): (",5000,", ",4,"),
}


@pytest.mark.parametrize(("name", "said"), SPOILED)
def test_a_broken_field_of_a_processed_file_is_named(source, tmp_path, name, said):
    write(kuairand.read(source), tmp_path)
    path, (old, new) = tmp_path / name, SPOILED[name, said]
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    read = {SEQS: read_sequences, INFERENCE: read_days, BATCHES: read_batches}[name]
    with pytest.raises(UsageError) as refused:
        list(read(path))
    assert str(refused.value).startswith(f"{name}:{said}")
    assert "\n" not in str(refused.value)


def test_nothing_is_left_where_writing_fails(source, tmp_path):
    def broken():
        yield kuairand.read(source)[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(broken(), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_command_draws_by_default_and_says_what_is_in_the_files(tmp_path, capsys):
    assert main(["data", "kuairand-1k", "--users", "2", "--seed", "3", "--to", str(tmp_path / "a")]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("2 users, ")
    assert "action_weights: 0 to " in said.out
    assert "drawn by seed" in said.err
    assert main(["data", "kuairand-1k", "--synthetic", "--users", "2", "--seed", "3", "--to", str(tmp_path / "b")]) == 0
    for name in (SEQS, INFERENCE, BATCHES):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_flag_of_the_seeds_preprocessor_changes_nothing(tmp_path):
    for folder, flag in (("a", []), ("b", ["--inference"])):
        assert main(["data", "kuairand-1k", *flag, "--users", "2", "--to", str(tmp_path / folder)]) == 0
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(["processed_seqs.csv", "processed_seqs_inference.csv", "processed_batches.csv"])
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_the_command_reads_the_real_files(source, tmp_path, capsys):
    assert main(["data", "kuairand-1k", "--source", str(source), "--to", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "2 users, 6 interactions: shortest history 2, longest 4, mean 3.0"
    assert "user_active_degree: 1 to 2" in out
    assert "video_id: 70 to 81" in out
    assert "3 users' days, 4 intervals to replay" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["movielens"], "attnbench data: NAME=movielens is not known; one of kuairand-1k"),
        (["kuairand-1k", "--users", "0"], "attnbench data: --users=0 cannot be used; a whole number, at least 1"),
        (["kuairand-1k", "--interval", "0"], "attnbench data: --interval=0 cannot be used"),
        (
            ["kuairand-1k", "--interval", "9" * 16],
            f"attnbench data: --interval={'9' * 16} cannot be used; 1 to 1000000000",
        ),
        (["kuairand-1k", "--source", "x", "--users", "5"], "attnbench data: --users=5 does not go with --source"),
        (
            ["kuairand-1k", "--to", "x" * 300],
            f"data: --to={'x' * 300} cannot be written (File name too long); a folder",
        ),
        (["kuairand-1k", "--source", "nowhere"], "kuairand-1k: --source=nowhere is not there; the folder of"),
        (["serving-shapes", "--inference"], "attnbench data: --inference=on does not go with serving-shapes"),
        (["kuairand-1k", "--source", "."], "kuairand-1k: --source=. has no user_features_1k.csv; the folder of"),
    ],
)
def test_a_wrong_command_is_answered_in_one_line(words, said, capsys):
    assert main(["data", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert err.count("\n") == 1
