"""Run files and the history of runs; every statistic is recomputed on loading."""
