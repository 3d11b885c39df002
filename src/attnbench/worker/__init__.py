"""The measuring process and its protocol: one process per GPU, replaced when it fails."""
