"""Sorting, and ops that rely on sorted order."""
