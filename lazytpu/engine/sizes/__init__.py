"""Sizes that vary: the bounds that programs are made for, the traces that share one, and padding of the host's data."""
