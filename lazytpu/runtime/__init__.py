"""The runtime: the XLA client, device buffers, and programs.

`client` holds every private name of jax that lazytpu uses, `mlir` those of jaxlib. `program` runs a compiled program on
device arrays, `chain` several in a row. `buffer` counts the device memory that is alive. `evaluate` runs a module in
the StableHLO reference interpreter. `tpu_compiler` compiles for a TPU that is not there.
"""
