"""Sparse COO tensors of the device: indices and values are dense tensors, and ops on them are recorded as dense ops.

`register` registers the kernels; ops without a kernel raise an error with a hint (`refusals`). docs/sparse.md lists
both.
"""
