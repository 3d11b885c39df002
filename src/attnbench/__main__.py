"""`python -m attnbench`, and the entry point of the command `attnbench`."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line; Ctrl-C during imports, or a second one at the end, prints no traceback.

    Returns:
        The exit code.
    """
    try:
        from attnbench.cli import main as command

        return command()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
