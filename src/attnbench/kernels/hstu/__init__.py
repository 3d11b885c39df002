"""HSTU attention kernels by how keys and values lie."""
