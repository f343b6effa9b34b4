"""PyTorch's device-generic test files on "tpu", through `PrivateUse1TestBase`, many tests in one process.

The files are a folder that the caller has: none of them is in this repository. Each test is followed by its control,
the same test on torch's CPU device. A test whose control does not pass is not comparable.
"""
