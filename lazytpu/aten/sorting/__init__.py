"""Sorting, and what is found in sorted order."""
