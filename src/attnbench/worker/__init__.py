"""The measuring process and its protocol: one a GPU, expendable."""
