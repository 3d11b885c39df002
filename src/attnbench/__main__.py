"""`python -m attnbench`."""

from __future__ import annotations

import sys

from attnbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
