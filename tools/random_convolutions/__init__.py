"""Random chains of convolutions, pools and other windows, and their gradients, on "tpu" against the CPU.

    python -m tools.random_convolutions -n 5000     as many chains, in child processes with bounded memory and time

XLA ends the process where one of its passes makes a window that does not fit its operands: sizes of 1 to 3 beside
larger ones, strides, dilations and paddings of all kinds are what leads there. `cases` draws the chains, `worker` runs
them on both devices, and the main module deals them out and lists those that died or differ.
"""
