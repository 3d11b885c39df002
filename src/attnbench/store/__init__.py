"""Run files and the history of runs; every statistic is worked out again on loading."""
