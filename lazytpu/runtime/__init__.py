"""The runtime: the XLA client, device buffers, and programs.

`client` and `topologies` hold every private name of jax and jaxlib that lazytpu uses; `program` runs a compiled program
on device arrays; `buffer` counts the device memory that is alive; `evaluate` runs a module in the StableHLO reference
interpreter; `tpu_compiler` compiles for a TPU that is not there.
"""
