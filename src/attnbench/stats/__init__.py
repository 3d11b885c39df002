"""Statistics of timings, free of torch: medians and intervals, paired ratios, stopping rules."""
