"""What a kernel can do wrong on the machine."""


class Mistake(Exception):
    """A kernel that would hang, race, or read what is not there on the card."""


class Race(Mistake):
    """Two accesses to the same shared memory, one a write, and no barrier or wait puts one before the other."""


class MissingFence(Mistake):
    """What threads wrote is read by a product or a bulk copy, and its writer did not call `fence_async_shared`."""


class TooEarly(Mistake):
    """Registers of an asynchronous product used before `warpgroup_mma_wait`."""


class BarrierMisuse(Mistake):
    """An mbarrier used before it is made, made twice, or given more arrivals or bytes than it takes."""


class Deadlock(Mistake):
    """Every partition waits and nothing is in flight."""


class Unfinished(Mistake):
    """A partition or program ended before what it started."""


class OutOfBounds(Mistake):
    """An address outside the tensor's storage, or an index outside a shape."""


class Unsupported(NotImplementedError):
    """What the machine has no stand-in for."""
