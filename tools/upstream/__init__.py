"""PyTorch's device-generic test files on "tpu", through `PrivateUse1TestBase`, many tests in one process.

The caller provides the folder of the files: none of them is in this repository. Each test is followed by its control,
the same test on torch's CPU device. A test whose control does not pass is not comparable.
"""
