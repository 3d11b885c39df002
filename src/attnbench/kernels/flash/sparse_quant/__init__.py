"""Block-sparse softmax attention in 8 bits, forward: the lists of `flash.sparse`, the arithmetic of `flash.quant`."""
