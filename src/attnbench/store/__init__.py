"""Run files, exports and the layouts of the seeds."""
