"""What of a text stays on this machine: folders, passwords, the names of its user and of itself.

Records are committed and sent around.  `without_paths` is applied where a text becomes the reason, a note or the
version of a record, before it is cut to a length, since half a name is a name.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from attnbench.text import without_passwords

NOBODY = {
    "root",
    "user",
    "users",
    "admin",
    "administrator",
    "ubuntu",
    "debian",
    "runner",
    "docker",
    "guest",
    "nobody",
    "test",
    "tests",
    "build",
    "localhost",
    "local",
    "host",
    "node",
    "server",
    "worker",
    "gpu",
    "cpu",
    "cuda",
    "torch",
    "triton",
    "home",
    "work",
    "bench",
    "attnbench",
    "app",
    "data",
}
"""Names that tell nobody who or where; replaced, they would spoil sentences."""
SHORTEST = 3
"Letters of a name that is looked for."
MOST = 4096
"Letters of a text that is looked through: a library may say megabytes, and all but its beginning is of no use."
USERS = ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER")
HOSTS = ("HOSTNAME", "HOST", "COMPUTERNAME")

WEB = r"\b(?:https?|ftps?|ssh|git|s3|gs|hf|tcp|grpc|redis|postgres(?:ql)?)(?:\+\w+)?://[^\s'\"<>]+"
FILE_URL = re.compile(r"\bfile:(?://[^/\s'\"]*)?(?=/)", re.IGNORECASE)
# A folder's name: brackets and commas as they stand within names, not as they stand around them.
LETTER = r"(?:[^\s/\\'\"`,:;()<>|]|\([^()/\s]*\)|,(?=[^\s/]))"
STOP = (
    r"(?:and|or|in|at|is|are|was|for|with|while|to|of|the|a|an|from|than|not|as|on|but|by|has|have|vs|after|before|"
    r"via|into|when|that|which|needs?|failed|during)"
)
# Words of one name after a blank, unless the name before has an ending (x.so) or prose goes on.
WORD = rf"(?<!\.\w)(?<!\.\w\w)(?<!\.\w\w\w) (?!{STOP}\b){LETTER}+"
FOLDERS = rf"(?:(?=[\w.(@+$-]){LETTER}+(?:{WORD}){{0,3}}/+)+"
BEFORE = r"(?:~[\w.-]*|\$\w+|\$\{\w+\}|%\w+%|(?<![A-Za-z])[A-Za-z]:)?"
OPTION = r"(?:(?<=\s)|^)--?[A-Za-z]{1,12}(?=/)"
POSIX = re.compile(rf"(?P<option>{OPTION})?(?(option)|(?<![\w.)\]}}/])){BEFORE}/+{FOLDERS}", re.MULTILINE)
QUOTED = re.compile(r"(?P<quote>['\"`])(?:~[\w.-]*|[A-Za-z]:)?/(?=[^\s/])[^'\"`\n]*/(?=[^'\"`\n]*(?P=quote))")
WINDOWS = re.compile(r"(?<![A-Za-z])(?:[A-Za-z]:|\\\\+[\w.?$-]{2,})\\+(?:[^\\/:*?\"<>|\n]+[\\/]+)*")
HOME = re.compile(
    rf"(?<![\w.)\]}}])/+(?:home|Users)/+[\w.-]+(?![\w/.-]|(?:{WORD}){{1,3}}/)|"
    r"(?<![\w/])~[A-Za-z_][\w.-]*(?![\w/.-])"
)
HOME_OF_WINDOWS = re.compile(r"(?<![A-Za-z])[A-Za-z]:[\\/]+Users[\\/]+[\w.-]+(?![\w\\/])", re.IGNORECASE)


def without_paths(text: str) -> str:
    """`text` with the last name alone of every absolute path, and without passwords, user and host."""
    if len(text) > MOST:
        text = f"{text[:MOST]} … and {len(text) - MOST} more letters"
    text = FILE_URL.sub("", without_passwords(text))
    parts = re.split(f"({WEB})", text)
    parts[::2] = [_without_folders(part) for part in parts[::2]]
    text = "".join(parts)
    for pattern, instead in _own_names():
        text = pattern.sub(instead, text)
    return text


def _without_folders(text: str) -> str:
    for folder in _own_folders():
        text = folder.sub("/_/", text)  # a folder of plain letters, which goes with those behind it
    text = QUOTED.sub(lambda match: match["quote"], text)
    text = HOME.sub("~", HOME_OF_WINDOWS.sub("~", text))
    text = WINDOWS.sub("", text)
    return POSIX.sub(lambda match: match["option"] or "", text)


def _own_folders() -> Iterator[re.Pattern[str]]:
    """Folders that are known here, whatever letters their names have."""
    found = {_folder(Path.cwd), _folder(Path.home)}
    for folder in sorted((one for one in found if one), key=len, reverse=True):
        parts = [re.escape(part) for part in folder.split("/") if part]
        if parts:
            yield re.compile("/+" + "/+".join(parts) + "/+")


def _folder(find: object) -> str:
    try:
        return str(find())  # type: ignore[operator]  # given a function
    except (OSError, RuntimeError):  # a folder that is gone, a user without a home
        return ""


@cache
def _own_names() -> tuple[tuple[re.Pattern[str], str], ...]:
    return own_names(os.environ)


def own_names(environment: Mapping[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """What is looked for, and what is written instead: the names of the user and of the machine.

    Args:
        environment: variables; the system's own data are asked besides.
    """
    users = {environment.get(name, "") for name in USERS} | set(_account()) | {Path(environment.get("HOME", "")).name}
    hosts = {environment.get(name, "") for name in HOSTS} | {socket.gethostname()}
    hosts |= {host.partition(".")[0] for host in hosts}
    found = [(name, "<host>", r"(?:\.[A-Za-z][\w-]*)*") for name in hosts]
    found += [(name, "<user>", "") for name in users]
    return tuple(
        (re.compile(rf"(?<![\w-]){re.escape(name)}{more}(?![\w-])", re.IGNORECASE), instead)
        for name, instead, more in sorted(found, key=lambda one: -len(one[0]))
        if len(name) >= SHORTEST and name.casefold() not in NOBODY and not name.isdigit()
    )


def _account() -> tuple[str, ...]:
    """The user's name and full name, as the system has them."""
    try:
        import pwd

        account = pwd.getpwuid(os.getuid())
    except (ImportError, KeyError):  # not a Unix; a container's user without an account
        return ()
    return account.pw_name, account.pw_gecos.partition(",")[0]
