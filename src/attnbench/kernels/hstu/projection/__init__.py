"""The wide product of an HSTU layer, with what follows it: SiLU of queries, keys and values, and their append."""
