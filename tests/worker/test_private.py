"""Reasons and notes contain no folder, user, host or password, and remain sentences."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.machine.device import CPU
from attnbench.record import PlannedGroup, Settings, Status
from attnbench.worker import private
from attnbench.worker.outcome import RecordBuilder, reason_of
from attnbench.worker.private import own_names, without_paths
from attnbench.workloads.base import load_workload

FOLDERS = [
    ("no file /home/me/a b", "no file a b"),
    (f"attnbench.backends.files.{b'/home/alice/my kernel.py'.hex()}.Odd: not now", "my kernel.Odd: not now"),
    (f"attnbench.backends.files.{b'/home/alice/k.py'.hex()}0: an odd digit", "k0: an odd digit"),
    ("('/usr/lib/x.so', 1)", "('x.so', 1)"),
    ("~/models/y.pt is missing", "y.pt is missing"),
    ("nvcc -I/home/alice/inc/x.h -L/home/alice/lib", "nvcc -Ix.h -Llib"),
    ("-isystem/home/alice/inc/a.h --prefix=/home/alice/p/q", "-isystema.h --prefix=q"),
    ("-Wl,-rpath,/home/alice/lib,-rpath,/opt/x/y", "-Wl,-rpath,lib,-rpath,y"),
    ("a:/home/alice/x/y.py", "y.py"),
    ("ld: error:/home/alice/x/y.o: bad", "ld: error:y.o: bad"),
    ("PATH=/usr/bin:/home/alice/bin", "PATH=bin:bin"),
    ("file:///home/alice/x.py file://box/home/alice/y.py file:/home/alice/z", "x.py y.py z"),
    ("sqlite:////home/alice/x.db", "sqlite:x.db"),
    ("~alice/x/y.py and ~alice", "y.py and ~"),
    ("$HOME/x/y.py ${TMPDIR}/a/b", "y.py b"),
    ("//home//alice///x.py", "x.py"),
    ('File "/home/alice/My Documents/k.py", line 3', 'File "k.py", line 3'),
    ("'/home/al ice/k.py'", "'k.py'"),
    ("/home/alice/my project/sub dir/k.py failed", "k.py failed"),
    ("/home/some one/secret stuff here/k.py", "k.py"),
    ("/home/alice/a(1)/b,c/x.py", "x.py"),
    ("(/home/alice/x/y.py) [/opt/a/b] <frozen /srv/a/b> @/mnt/a/b", "(y.py) [b] <frozen b> @b"),
    ("cd: /home/alice: no such folder; /Users/alice", "cd: ~: no such folder; ~"),
    ("C:\\Users\\alice\\My Documents\\k.py", "k.py"),
    (r"C:\\Users\\alice\\k.py D:/code/k.cu", "k.py k.cu"),
    (r"\\server\share\x.py and C:\Users\alice", "x.py and ~"),
    ("git@box.org:/home/alice/r/x", "git@box.org:x"),
]
SENTENCES = [
    "GB/s and 1/2/3 and a / b",
    "see https://pytorch.org/docs/stable",
    "src/kernel.cu:12",
    "expected [4, 2]/[8, 2]",
    "fwd/bwd 3 TFLOP/s at 5 ms/it; out/dq/dk, nan/inf/0",
    "about ~5 % of it",
    "ratio (a+b)/c/d",
    "/= */ // x",
    "tcp://10.0.0.1:29500/x",
    "cmd /c dir",
    r"the pattern \d+\w is none",
    "x.so while computing dq/dk",
]


@pytest.mark.parametrize(("text", "plain"), FOLDERS)
def test_records_name_no_folder(text, plain):
    assert without_paths(text) == plain
    assert without_paths(plain) == plain


@pytest.mark.parametrize("text", SENTENCES)
def test_what_is_no_path_stays(text):
    assert without_paths(text) == text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("in /usr/lib/x.so while computing dq/dk", "in x.so while computing dq/dk"),
        ("/usr/lib while computing dq/dk", "lib while computing dq/dk"),
        ("/tmp/x is a/b", "x is a/b"),
        ("open /srv/a/x.py or src/y.py", "open x.py or src/y.py"),
        ("/dev/nvidia0 and /dev/shm/x", "nvidia0 and x"),
    ],
)
def test_a_sentence_goes_on_after_a_path(text, plain):
    assert without_paths(text) == plain


WORD = st.text("abcXYZ019_.-", min_size=1, max_size=6).filter(lambda word: word.strip("."))


@given(
    st.sampled_from(["/", "//", "-I/", "a:/", "file:///", "~name/", "'/", "(/", "x=/", "@/", '"/', "cannot open /"]),
    st.lists(st.from_regex(r"secret[a-z]{1,4}", fullmatch=True), min_size=1, max_size=4),
    st.sampled_from(["/", "//"]),
    WORD,
)
def test_no_folder_survives_wherever_a_path_stands(lead, folders, slash, last):
    text = without_paths(lead + slash.join([*folders, last]) + {"'": "'", '"': '"', "(": ")"}.get(lead[0], ""))
    assert "secret" not in text
    assert last.lstrip(".") in text or "~" in text


def test_the_own_folders_go_whatever_letters_they_have(tmp_path, monkeypatch):
    odd = tmp_path / "is that (mine), or; not?" / "x.so and y"
    odd.mkdir(parents=True)
    monkeypatch.chdir(odd)
    assert without_paths(f"cannot open {odd}/kernels/a.cu") == "cannot open a.cu"
    monkeypatch.setenv("HOME", str(odd.parent))
    assert without_paths(f"in {odd.parent}//.cache/b") == "in b"


def test_user_and_host_are_not_named(monkeypatch):
    monkeypatch.setattr(private.socket, "gethostname", lambda: "bigbox7.lab.example.org")
    monkeypatch.setattr(private, "_account", lambda: ("alicia", "Alicia Example"))
    names = own_names({"USER": "ali", "HOME": "/home/alicia", "HOSTNAME": "gpu", "LOGNAME": "root"})
    monkeypatch.setattr(private, "_own_names", lambda: names)
    text = (
        "alicia@bigbox7: BIGBOX7.lab.example.org refused Alicia Example (uid alicia, ali); root of the gpu, "
        "alicia-flash"
    )
    assert without_paths(text) == (
        "<user>@<host>: <host> refused <user> (uid <user>, <user>); root of the gpu, alicia-flash"
    )


@pytest.mark.parametrize("name", ["root", "gpu", "x", "", "42", "ubuntu"])
def test_a_name_that_tells_nothing_is_left(monkeypatch, name):
    monkeypatch.setattr(private.socket, "gethostname", lambda: name)
    monkeypatch.setattr(private, "_account", lambda: (name,))
    assert own_names({"USER": name}) == ()


@pytest.mark.parametrize(
    "text",
    [
        "'" + "/a" * 200_000,
        "/" * 400_000,
        "/a b c d " * 50_000,
        "'/" * 100_000,
        "x://a:" + "b" * 400_000,
        "/(" * 100_000,
        "$a" * 100_000,
    ],
)
def test_megabytes_are_cut_before_they_are_looked_through(text):
    found = without_paths(text)
    assert len(found) < private.MOST + 60
    assert re.search(r"and \d+ more letters$", found)


def builder():
    workload = load_workload("attention")
    case = workload.case({"batch": 1, "seqlen": 16, "nheads": 1, "headdim": 8})
    group = PlannedGroup(group="g", workload="attention", case=case.to_dict(), case_id=case.id, backends=("mine",))
    return RecordBuilder(group, Settings(device="cpu"), "mine", workload, case, device=CPU, files=())


def test_reason_notes_and_version_of_a_record_are_private():
    found = builder()
    found.note("built in -I/home/alice/x/y", "from postgresql://me:pw@h/db")
    found.version = "2.1 (/home/alice/src/lib)"
    record = found.failed(Status.FAILED, "cannot open '/home/alice/My Files/k.so'")
    assert record.reason == "cannot open 'k.so'"
    assert record.notes == ("built in -Iy", "from postgresql://me:***@h/db")
    assert record.version == "2.1 (lib)"


def test_a_reason_is_cut_after_its_folders_are_gone():
    """Cut first, half a folder's name would be left, which no pattern knows."""
    found = reason_of(ValueError("x" * 380 + " /home/alice_and_her_secret/project/file.py is bad"), "set-up")
    assert "alice" not in found
    assert "file.py" in found
