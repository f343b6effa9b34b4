"""Passes on the layout of values: dimension orders, tiles, and small values packed into one."""
