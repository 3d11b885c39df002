"""Code of the generator's process, which only reports when requests arrive."""
