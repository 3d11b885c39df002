"""The paged HSTU forward for Hopper (sm_90), in Gluon."""
