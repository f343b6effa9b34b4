"""Convolution, pooling and resampling: ops whose results depend on a window of their operand."""
