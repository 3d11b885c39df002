"""The machine under test: fingerprint, telemetry, clocks, cache size, peaks and ceilings."""
