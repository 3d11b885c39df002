"""Softmax attention: forward and backward."""
