"""A --backends file that imports in the parent and, by `ATTNBENCH_TEST_IMPORT`, fails in the worker."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager

from attnbench.backends.base import Backend

if "ATTNBENCH_PARENT" in os.environ:
    if os.environ["ATTNBENCH_TEST_IMPORT"] == "raises":
        raise ImportError("libsomething.so.3: cannot open shared object file")
    os.kill(os.getpid(), signal.SIGSEGV)


class OfTheFile(Backend):
    name, workload, variant, install, devices = "of-the-file", "attention", "softmax", "here", ("cpu",)

    @contextmanager
    def session(self, case, inputs):
        yield
