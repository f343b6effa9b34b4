"""The runtime: the XLA client, device buffers, and compiled programs.

`client` holds every private name of jax that lazytpu uses, and `mlir` every private name of jaxlib. `program` runs a
compiled program on device arrays, and `chain` runs several programs in sequence. `buffer` counts live device memory.
`evaluate` runs a module in the StableHLO reference interpreter. `tpu_compiler` compiles for a TPU that this machine
does not have.
"""
