"""Block-sparse HSTU attention: forward and backward."""
