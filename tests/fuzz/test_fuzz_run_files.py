"""Run files with arbitrary content, with every verb that reads one."""

from __future__ import annotations

import dataclasses
import json

from attack import bytes_spoilt, dumps, spoilt

from attnbench.record import Status
from attnbench.store import runfile
from made_up_run import make_case, make_group, make_lost, make_run

AXES = ["seqlen", "dtype", "causal", "window", "case", "a/b", ""]


def base():
    """A small run with everything a record can have."""
    records = [
        item
        for size in (512, 1024)
        for item in make_group(make_case(seqlen=size), {"sdpa-flash": 349.0, "flex": 487.0}, samples=7)
    ]
    records = [
        dataclasses.replace(
            item, timers={"cupti": item.time, "wall": item.time}, phases={"plan": item.time}, counters={"dram": 1.0}
        )
        for item in records
    ]
    records.append(make_lost(make_case(seqlen=512), "eager", Status.OOM, "needs 48.0 GiB"))
    data = json.loads(runfile.dumps(make_run(records)))
    groups = [group["group"] for group in data["run"]["plan"]]
    data["run"]["shard"] = {"index": 1, "count": 1, "groups": groups}  # the only one, so that it can be merged alone
    return data


def commands(path, other, source):
    """What may be asked of a run file."""
    yield ["export", path, "--csv", "-"]
    yield ["export", path, "--md", "-"]
    yield ["export", path, "--json", "-"]
    yield ["export", path, "--xlsx", "x.xlsx"]
    yield ["export", path, "--csv", "rows.csv", "--by", source.choice(AXES) or "x"]
    for layout in ("seed-000", "seed-001", "seed-004"):
        yield ["export", path, "--layout", layout]
    yield ["export", path, "--layout", source.choice(("seed-000", "seed-001", "seed-004")), "--to", "seed"]
    yield ["diff", path, other, "--md", "-"]
    yield ["diff", other, path, "--json", "-", "--across", "timer,l2,regime,card,input"]
    yield ["history", "--add", path]
    yield ["history"]
    yield ["report", path, "--html", "x.html"]
    yield ["report", path, other, "--html", "x.html"]
    yield ["run", "--resume", path, "--dry-run"]
    yield ["merge", path, "--no-save", "--json", "-"]
    yield ["merge", path, other]
    if source.random() < 0.1:
        yield ["report", path, "--plots", "plots", "--x", source.choice(AXES) or "x"]


def test_run_files(attack):
    data = base()
    (attack.folder / "other.json").write_text(json.dumps(data | {"run": data["run"] | {"id": "0badcafe"}}))
    path = attack.folder / "run.json"
    for source in attack.seeds():
        if source.random() < 0.85:
            text = dumps(spoilt(data, source)).encode()
        else:
            text = bytes_spoilt(json.dumps(data).encode(), source)
        path.write_bytes(text)
        wanted = list(commands("run.json", "other.json", source))
        code, _, told = attack.call(["export", "run.json", "--csv", "-"])
        for words in source.sample(wanted, 4) if code == 0 else ():
            attack.call(words, told)
