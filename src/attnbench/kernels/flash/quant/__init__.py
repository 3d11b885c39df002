"""Quantised softmax attention, forward: int8 scores with smoothed keys, e4m3 values with two-level accumulation."""
