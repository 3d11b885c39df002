"""AUC of a replay: scores of a served log and the users' actions in the file, compared with counting pairs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.loadtest.simulated import Arrivals, Clock

from attnbench.cli import main
from attnbench.datasets.history import ACTIONS
from attnbench.datasets.processed import BATCHES, INFERENCE
from attnbench.loadtest.engine import ModelEngine
from attnbench.loadtest.labels import Judged, Labelled, auc
from attnbench.loadtest.replay import DRAWN, Replay
from attnbench.loadtest.serving import Batching, Refused, Server
from attnbench.loadtest.users import Policy
from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.request import Request

TINY = config_of("tiny")


def by_pairs(scores: Any, positive: Any) -> float | None:
    """The definition, pair by pair."""
    high = [score for score, is_one in zip(scores, positive, strict=True) if is_one]
    low = [score for score, is_one in zip(scores, positive, strict=True) if not is_one]
    if not high or not low:
        return None
    return sum((a > b) + (a == b) / 2 for a in high for b in low) / (len(high) * len(low))


@pytest.mark.parametrize("kinds", [2, 3, 7, 1000])
def test_auc_is_the_share_of_pairs_in_order_ties_half(kinds: int) -> None:
    drawn = np.random.default_rng(kinds)
    for count in (2, 3, 10, 57):
        scores = drawn.integers(0, kinds, count).astype(np.float32)
        positive = drawn.random(count) < 0.4
        found, right = auc(scores, positive), by_pairs(scores, positive)
        assert found == right if right is None else found == pytest.approx(right, abs=1e-12)


def test_auc_of_what_is_known() -> None:
    scores, positive = np.array([0.1, 0.2, 0.3, 0.4]), np.array([False, False, True, True])
    assert auc(scores, positive) == 1.0
    assert auc(-scores, positive) == 0.0
    assert auc(np.zeros(4), positive) == 0.5
    assert auc(scores, np.array([False, True, False, True])) == 0.75
    assert auc(scores, np.ones(4, bool)) is None
    assert auc(np.empty(0), np.empty(0, bool)) is None


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """Three users of two days, an interval an interaction or two, with any actions."""
    drawn = np.random.default_rng(3)
    features = {"user_active_degree": 1, "follow_user_num_range": 2, "fans_user_num_range": 3}
    features |= {"friend_user_num_range": 4, "register_days_range": 5}
    days: list[dict[str, Any]] = []
    ends: list[tuple[int, int, int, int]] = []
    for user in range(3):
        for date in (20220408, 20220409):
            length = int(drawn.integers(9, 14))
            times = np.sort(drawn.integers(0, 10**6, length)) + (date % 10) * 10**7
            indptr = [0, *range(2, length, 3), length]
            lists = {"video_id": drawn.integers(0, 10**6, length), "time_ms": times}
            lists |= {"action_weights": drawn.integers(0, 256, length)}
            lists |= {name: np.zeros(length, int) for name in ("play_time_ms", "duration_ms")}
            row = {"user_id": user, "date": date} | {name: json.dumps(x.tolist()) for name, x in lists.items()}
            days.append(row | {"interval_indptr": json.dumps(indptr), "num_intervals": len(indptr) - 1} | features)
            ends += [(int(times[end - 1]), user, date, end) for end in indptr[1:]]
    with (tmp_path / INFERENCE).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(days[0]))
        writer.writeheader()
        writer.writerows(days)
    lines = [f"{user},{date},{when},{end}\n" for when, user, date, end in sorted(ends)]
    (tmp_path / BATCHES).write_text("user_id,date,interval_end_ts,interval_indptr\n" + "".join(lines))
    return tmp_path


def masks_by_line(folder: Path, count: int) -> list[list[int]]:
    """What users did after each line, from the files alone."""
    with (folder / INFERENCE).open(newline="") as file:
        rows = {(row["user_id"], row["date"]): json.loads(row["action_weights"]) for row in csv.DictReader(file)}
    found = []
    with (folder / BATCHES).open(newline="") as file:
        for line in csv.DictReader(file):
            user, date, end = line["user_id"], line["date"], int(line["interval_indptr"])
            days = sorted(day for known, day in rows if known == user)
            before = sum(len(rows[user, day]) for day in days if day < date)
            whole = [mask for day in days for mask in rows[user, day]]
            found.append(whole[before + end : before + end + count])
    return found


def replayed(replay: Replay, engine: ModelEngine) -> Judged:
    judged, clock = Judged(), Clock()
    source = Arrivals(clock, [at * 10**6 for at in range(len(replay))])
    how = Batching(max_batch=2, max_wait_ms=0)
    ledger = Server(source, engine, replay, how, clock=clock, on_scores=judged.take).run()
    assert ledger.answered == len(replay)
    return judged


@pytest.mark.parametrize("graph", [False, True])
def test_auc_of_a_served_log_is_that_of_each_request_alone(prepared: Path, graph: bool) -> None:
    """From pages, in batches, against the model over whole histories, the file read once more, and pairs counted."""
    model = HstuRanking(TINY, dtype=torch.float64)
    replay = Replay(prepared, TINY, candidates=5, policy=Policy(TINY))
    cache = model.make_cache(pages=12, page_size=32)
    found = replayed(replay, ModelEngine(model, attention="reference", cache=cache, graph=graph)).of_tasks()
    assert cache.counts.hit > 0

    alone = [replay.take(number) for number in range(len(replay))]
    scores = torch.cat([model([one]) for one in alone if isinstance(one, Request)]).float().tolist()
    masks = [mask for line in masks_by_line(prepared, 5) for mask in line]
    assert len(masks) == len(scores) > 50
    assert [one.task for one in found] == list(ACTIONS[: TINY.tasks])
    for task, one in enumerate(found):
        positive = [mask >> task & 1 for mask in masks]
        assert (one.positive, one.negative) == (sum(positive), len(positive) - sum(positive))
        assert one.auc == pytest.approx(by_pairs([row[task] for row in scores], positive), abs=1e-6)


def test_drawn_candidates_are_of_the_files_each_once_and_have_no_labels(prepared: Path) -> None:
    given = {"candidates": 7, "policy": Policy(TINY), "kind": DRAWN}
    replay, following = Replay(prepared, TINY, **given), Replay(prepared, TINY, candidates=7, policy=Policy(TINY))
    items = set(np.concatenate([one.items for one in replay._users.values()]).tolist())
    asked = []
    for number in range(len(replay)):
        one, other = replay.take(number), following.take(number)
        assert not isinstance(one, Labelled | Refused)
        assert isinstance(other, Labelled)
        np.testing.assert_array_equal(one.items, other.items)
        assert len(set(one.candidates.tolist())) == len(one.candidates) == 7  # the last line of a log too
        assert set(one.candidates.tolist()) <= items
        asked.append(tuple(one.candidates.tolist()))
    assert len(set(asked)) > len(asked) // 2
    assert asked == [tuple(Replay(prepared, TINY, **given).take(number).candidates) for number in range(len(asked))]
    assert asked[0] != tuple(Replay(prepared, TINY, seed=1, **given).take(0).candidates)
    few = Replay(prepared, TINY, candidates=10**4, policy=Policy(TINY), kind=DRAWN).take(0)
    assert sorted(few.candidates.tolist()) == sorted(items)
    model = HstuRanking(TINY, dtype=torch.float32)
    assert replayed(replay, ModelEngine(model, attention="reference", cache=None)).of_tasks() == ()


def test_a_replay_says_auc_with_its_weights(prepared: Path, tmp_path: Path, capsys) -> None:
    line = ["load", "hstu-serving", "--device", "cpu", "--config", "tiny", "--source", str(prepared), "--rate", "200"]
    line += ["--duration", "0.1", "--out", str(tmp_path / "out")]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert "area under the ROC curve" in out
    assert "is_comment" in out
    assert "weights are random: an AUC says nothing of a model" in out
    (path,) = (tmp_path / "out").iterdir()
    assert main(["show", str(path)]) == 0
    assert capsys.readouterr().out.count("is_comment") == 1
    text = path.read_text()
    (tmp_path / "bad.load.json").write_text(
        text.replace('"task": "is_like", "auc": 0.', '"task": "is_like", "auc": 7.')
    )
    assert main(["show", str(tmp_path / "bad.load.json")]) == 2
    assert "points[0].auc of 'is_like' cannot be" in capsys.readouterr().err
    assert main([*line, "--candidates", "drawn"]) == 0
    assert "ROC" not in capsys.readouterr().out
    assert main([*line[:-2], "--candidates", "mine"]) == 2
    assert "--candidates=mine is not known; one of following, drawn" in capsys.readouterr().err
    assert main(["load", "hstu-serving", "--device", "cpu", "--candidates", "drawn"]) == 2
    assert "--candidates=drawn does not go with --scenario server; --scenario replay" in capsys.readouterr().err
