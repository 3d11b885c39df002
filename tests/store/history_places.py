"""Empty histories of both kinds, for tests of both; and processes that write to one."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from history_server import MISSING, programs, server

from attnbench.store import runfile
from attnbench.store.history.opening import open_history
from attnbench.store.history.place import find_place
from made_up_run import H200, make_case, make_group, make_run, make_time

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="session")
def server_url():
    if programs() is None or importlib.util.find_spec("psycopg") is None:
        pytest.skip(MISSING)
    with server() as url:
        yield url


@pytest.fixture
def postgresql(server_url):
    """URL of a new database."""
    from sqlalchemy import create_engine

    name = f"t{uuid.uuid4().hex}"
    engine = create_engine(server_url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return server_url.replace("/postgres?", f"/{name}?")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql")
    return f"sqlite:///{tmp_path}/history.sqlite"


@pytest.fixture
def place(url, tmp_path):
    return find_place(url, tmp_path)


@pytest.fixture
def sqlite(tmp_path):
    return find_place(None, tmp_path, {})


def as_read(run):
    """What reading the file of `run` gives."""
    return runfile.loads(runfile.dumps(run))


def numbered(number, *, factor=1.0, torch="2.11.0", **changed):
    """One of many runs of one suite, a day apart; its times `factor` longer."""
    records = make_group(make_case(), {"sdpa-flash": 349.0, "sdpa-cudnn": 607.0}, samples=12)
    records = [
        dataclasses.replace(item, time=make_time([sample * factor for sample in item.time.samples_ms]))
        for item in records
    ]
    started = f"2026-{1 + number // 28:02d}-{1 + number % 28:02d}T06:00:00Z"
    environment = dataclasses.replace(H200, torch=torch)
    return as_read(
        make_run(records, **{"id": f"{number:08x}", "started": started, "environments": (environment,)} | changed)
    )


def fill(place, runs):
    from attnbench.store.history.writing import add

    with open_history(place, write=True) as history:
        return [add(history, run) for run in runs]


def python(code, *words, **options):
    """A process that runs `code` with the tests' modules at hand."""
    folder = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, folder.parent, folder)))}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )
