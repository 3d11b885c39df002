"""Statistics of timings, without torch: medians and intervals, paired ratios, stopping rules."""
