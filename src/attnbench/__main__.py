"""`python -m attnbench`, and what the command `attnbench` calls."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line; Ctrl-C while it is still being imported, or once more at its end, is no traceback.

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
