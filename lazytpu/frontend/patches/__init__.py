"""Patches of torch's Python modules that make "tpu" a device like any other there."""
