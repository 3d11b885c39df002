"""Quantised softmax attention, forward: int8 scores with smoothed keys, e4m3 values in two levels of accumulation."""
