"""What an HSTU model does beside products and attention, each in one launch."""
