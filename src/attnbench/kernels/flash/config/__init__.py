"""Launch configurations of softmax attention: fields, space, tuned defaults.  Can be imported without torch and Triton."""
