"""A PostgreSQL server for the tests: in a temporary folder, on a socket there, removed afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MISSING = "needs PostgreSQL and its driver: apt-get install postgresql; pip install 'attnbench[postgresql]'"
USER = "attnbench"
WAIT_S = "600"
"""How long a server may take to start or stop: a minute, the default, is not enough on every machine."""


def programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`: Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("pg_ctl")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


@contextmanager
def server() -> Iterator[str]:
    """Run a server; gives the URL of an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    data, place = folder / "data", programs()
    assert place is not None
    who = {}
    if os.geteuid() == 0:  # the server refuses root
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        account = names.get("postgres") or names["nobody"]
        who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        os.chown(folder, account.pw_uid, account.pw_gid)

    def call(*words: str) -> None:
        done = subprocess.run(
            [place / words[0], *words[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **who,
        )
        assert done.returncode == 0, done.stdout[-2000:]

    try:
        call("initdb", "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        call("pg_ctl", "-D", str(data), "-w", "-t", WAIT_S, "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://{USER}@/postgres?host={folder}"
        finally:
            call("pg_ctl", "-D", str(data), "-w", "-t", WAIT_S, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
