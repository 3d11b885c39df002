"""Block-sparse softmax attention, forward: a map says which blocks of keys each block of queries sees."""
