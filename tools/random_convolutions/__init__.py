"""Random chains of convolutions, pools and other windows, and their gradients, on "tpu" against the CPU.

    python -m tools.random_convolutions -n 5000     as many chains, in child processes with bounded memory and time

XLA ends the process if one of its passes builds a window that does not fit its operands. Sizes of 1 to 3 besides larger
ones, and strides, dilations and paddings of all kinds provoke that. `cases` draws the chains, `worker` runs them on
both devices, and the main module distributes them and lists those that died or differ.
"""
