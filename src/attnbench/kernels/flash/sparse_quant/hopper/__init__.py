"""The Gluon kernel for Hopper (sm_90)."""
