"""Storages of the device: their bytes, what torch asks of them, who owns them, and how others read them."""
