"""Our own kernels; each file can be lifted out, so nothing of ours is imported here."""
