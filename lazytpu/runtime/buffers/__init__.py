"""The device memory of values, as it lies there: plain, padded, with a layout of its own, or deferred."""
