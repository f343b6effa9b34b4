"""Convolution, pooling and resampling: ops that compute each element from a window of their operand."""
