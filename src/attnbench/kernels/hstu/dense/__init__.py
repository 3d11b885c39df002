"""Dense HSTU attention: forward and backward."""
