"""The machine that is measured: fingerprint, telemetry, clocks, cache size, peaks and ceilings."""
