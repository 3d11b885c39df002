"""attnbench: the bench for attention kernels, with numbers that hold."""

__version__ = "0.1.0"
