"""Errors for what a kernel does wrong."""


class Mistake(Exception):
    """The kernel would hang, race, or read undefined data on the card."""


class Race(Mistake):
    """Two accesses to the same shared memory, one a write, that no barrier or wait orders."""


class MissingFence(Mistake):
    """A product or a bulk copy reads what threads wrote, and the writer did not call `fence_async_shared`."""


class TooEarly(Mistake):
    """Registers of an asynchronous product used before `warpgroup_mma_wait`."""


class BarrierMisuse(Mistake):
    """An mbarrier is used before init, initialized twice, or gets more arrivals or bytes than it expects."""


class Deadlock(Mistake):
    """Every partition waits and nothing is in flight."""


class Unfinished(Mistake):
    """A partition or program ended before the operations that it started."""


class OutOfBounds(Mistake):
    """An address outside the tensor's storage, or an index outside a shape."""


class Unsupported(NotImplementedError):
    """The kernel uses something that the machine has no stand-in for."""
