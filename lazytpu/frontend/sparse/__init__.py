"""Sparse COO tensors of the device: indices and values are dense tensors, and ops on them are recorded as dense ops.

`register` gives torch the kernels; ops without one are refused with a hint (`refusals`). docs/sparse.md lists both.
"""
