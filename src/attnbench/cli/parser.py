"""argparse without abbreviations, and with a one-line message for every mistake."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from attnbench.cli.elsewhere import here
from attnbench.errors import UsageError, did_you_mean, nearest, refusal

HELP_FLAGS = ("-h", "--help")
HELP_ALL = "--help-all"
WIDEST = 110
EXAMPLES = "examples:"
_FEW = r"argument (?P<flag>\S+): expected (one|at least one) argument"
_LOUD = r"argument (?P<flag>\S+): ignored explicit argument '(?P<value>.*)'"
_BOTH = r"argument (?P<flag>\S+): not allowed with argument (?P<other>\S+)"
_MISSING = r"the following arguments are required: (?P<names>.*)"


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, up to a readable width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=min(shutil.get_terminal_size().columns, WIDEST) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap sentences; lines of examples are unchanged."""
        return "\n\n".join(
            super(Formatter, self)._fill_text(part, width, indent)
            if part.startswith(EXAMPLES)
            else textwrap.fill(" ".join(part.split()), width, initial_indent=indent, subsequent_indent=indent)
            for part in text.split("\n\n")
        )


class BooleanAxis(argparse.Action):
    """``--causal``, ``--no-causal`` and ``--causal-both``, stored as true, false, both."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Store the value of the flag used; two contradicting flags are refused."""
        flag = option_string or ""
        value = "both" if flag.endswith("-both") else "false" if flag.startswith("--no-") else "true"
        before = getattr(namespace, self.dest)
        if before not in (None, value):
            names = ", ".join(self.option_strings)
            raise UsageError(f"{parser.prog}: {flag} contradicts what was given before it; one of {names}")
        setattr(namespace, self.dest, value)


class Parser(argparse.ArgumentParser):
    """Arguments of one verb.

    Args:
        verb: the command.
        summary: its description.
        verbs_with: returns the commands that have a flag; called if this one does not have it.
    """

    def __init__(self, verb: str, summary: str, verbs_with: Callable[[str], Sequence[str]] | None = None) -> None:
        super().__init__(
            prog=f"attnbench {verb}",
            description=_sentence(summary),
            allow_abbrev=False,
            add_help=False,
            formatter_class=Formatter,
        )
        self.add_argument(*HELP_FLAGS, HELP_ALL, action="store_true", dest="help", help=argparse.SUPPRESS)
        self._positionals.title = "arguments"
        self._given: Sequence[str] = ()
        self._verbs_with = verbs_with
        self._examples: Sequence[str] = ()
        self._usual: frozenset[str] = frozenset()
        self._usual_of: Callable[[Sequence[str]], Sequence[str]] | None = None

    def show_first(self, *flags: str, of: Callable[[Sequence[str]], Sequence[str]] | None = None) -> None:
        """Name the most used flags: `--help` shows these, `--help-all` all.

        Args:
            flags: the default.
            of: returns other flags for words of the command line, such as a suite; empty for `flags`.
        """
        self._usual, self._usual_of = frozenset(flags), of

    def help_for(self, words: Sequence[str]) -> str | None:
        """Return the help that the words request; None if they request none."""
        if HELP_ALL in words:
            return self.format_help()
        if not any(word in HELP_FLAGS for word in words):
            return None
        self._usual = frozenset(self._usual_of(words) if self._usual_of else ()) or self._usual
        return self._short_help()

    def format_help(self) -> str:
        """Return the full help; its first line omits the flags that the groups below list."""
        words = [_spelled(action) for action in self._actions if not action.option_strings]
        self.usage = " ".join([self.prog, *words, "[FLAG ...]"])
        return super().format_help()

    def _short_help(self) -> str:
        """Return the help with only the flags of `show_first`."""
        if not self._usual:
            return self.format_help()
        rare = [
            action
            for action in self._actions
            if action.option_strings and not self._usual.intersection(action.option_strings)
        ]
        empty = [
            group
            for group in self._action_groups
            if group._group_actions and all(action in rare for action in group._group_actions)
        ]
        before = [(one, one.help) for one in rare], [(one, one.description) for one in empty], self.epilog
        for action in rare:
            action.help = argparse.SUPPRESS
        for group in empty:
            group.description = None
        count = sum(HELP_ALL not in action.option_strings for action in rare)
        self.epilog = f"`{self.prog} {HELP_ALL}` shows {count} more flags.\n\n{self.epilog}"
        try:
            return self.format_help()
        finally:
            for action, text in before[0]:
                action.help = text
            for group, description in before[1]:
                group.description = description
            self.epilog = before[2]

    def example(self, *lines: str, remark: str = "") -> None:
        """Put examples under the help, and a remark under these."""
        self._examples = lines
        self.epilog = f"{EXAMPLES}\n" + "\n".join(f"  {line}" for line in lines) + (f"\n\n{remark}" if remark else "")

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments.

        Raises:
            UsageError: naming the argument, its value and what is accepted.
        """
        self._given = words
        args, rest = self.parse_known_args(_joined(words))
        for word in rest:
            self._refuse(word)
        for action in self._actions:
            self._check_value(action, getattr(args, action.dest, None))
        return args

    def refuse_stdout(self, args: argparse.Namespace) -> None:
        """Refuse ``--json -`` if stdout is closed: the data would be lost silently.

        Raises:
            UsageError: naming the flag.
        """
        for action in self._actions:
            if action.option_strings and getattr(args, action.dest, None) == "-":
                flag = _long("/".join(action.option_strings))
                raise UsageError(
                    refusal(self.prog, flag, "-", "is lost: stdout is closed", "a path, or an open stdout")
                )

    def flags(self) -> list[str]:
        """Return every flag of this verb."""
        return [flag for action in self._actions for flag in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Replace argparse's messages by attnbench's.

        Raises:
            UsageError: always.
        """
        if match := re.fullmatch(_FEW, message):
            spellings, flag = match["flag"].split("/"), _long(match["flag"])
            after = [word for before, word in zip(self._given, self._given[1:], strict=False) if before in spellings]
            if after:
                wrong = "starts like a flag, so it is no value"
                raise UsageError(refusal(self.prog, flag, after[0], wrong, self._wanted(flag)))
            raise UsageError(refusal(self.prog, flag, "''", "has no value", self._wanted(flag)))
        if match := re.fullmatch(_LOUD, message):
            raise UsageError(refusal(self.prog, _long(match["flag"]), match["value"], "takes no value", "alone"))
        if match := re.fullmatch(_BOTH, message):
            flag, other = _long(match["flag"]), _long(match["other"])
            raise UsageError(f"{self.prog}: {flag} does not go with {other}; one of the two")
        if match := re.fullmatch(_MISSING, message):
            wanted, names = "are" if ", " in match["names"] else "is", match["names"]
            such = f", as in `{self._examples[0]}`" if self._examples else ""
            raise UsageError(f"{self.prog}: {names} {wanted} missing{such}; see `{self.prog} --help`")
        raise UsageError(f"{self.prog}: {message}; see `{self.prog} --help`")

    def _refuse(self, word: str) -> NoReturn:
        if word.startswith("-"):
            flag, known = word.split("=")[0], self.flags()
            ours = here(flag, known)
            others = self._verbs_with(flag) if self._verbs_with and not ours else []
            near = [ours] if ours else nearest(flag, [one for one in known if one.startswith("--")])
            todo = f"it is a flag of {', '.join(others)}" if others else did_you_mean(near)
            listed = HELP_ALL if self._usual else "--help"
            raise UsageError(refusal(self.prog, "flag", flag, "is not known", f"see `{self.prog} {listed}`", todo))
        raise UsageError(refusal(self.prog, "argument", word, "is one too many", f"see `{self.prog} --help`"))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse ``--json=--csv``, almost certainly a missing value, and ``--out "$UNSET"``."""
        flag = _long("/".join(action.option_strings)) if action.option_strings else str(action.metavar)
        for one in value if isinstance(value, list) and value else [value]:
            one = "--" if one == [] else one  # argparse removes the two dashes of --json=-- from the values
            if isinstance(one, str) and not one.strip() and action.nargs != 0:
                raise UsageError(refusal(self.prog, flag, f"'{one}'", "is empty", self._wanted(flag)))
            if isinstance(one, str) and one.startswith("--") and action.nargs != 0:
                wrong = "starts like a flag, so it is no value"
                raise UsageError(refusal(self.prog, flag, one, wrong, self._wanted(flag)))

    def _wanted(self, flag: str) -> str:
        for action in self._actions:
            if flag in action.option_strings:
                return f"a value, {flag} {action.metavar}"
        return "a value"


def _long(spellings: str) -> str:
    """Return the first long one of a flag's spellings (``-o/--out``), or the first if none is long."""
    names = spellings.split("/")
    return next((name for name in names if name.startswith("--")), names[0])


def _joined(words: Sequence[str]) -> list[str]:
    """Return ``--window -1:5`` as ``--window=-1:5``: no flag begins with a digit, so that is a value."""
    joined: list[str] = []
    for word in words:
        if joined and re.match(r"-\d", word) and re.fullmatch(r"--[a-z0-9-]+", joined[-1]):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _spelled(action: argparse.Action) -> str:
    return f"[{action.metavar}]" if action.nargs == "?" else str(action.metavar)


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."
