"""Launch configurations of softmax attention: fields, space, tuned defaults.  Import without torch and Triton."""
