"""Storages of the device: their bytes, the methods that torch calls, their owners, and access by other libraries."""
