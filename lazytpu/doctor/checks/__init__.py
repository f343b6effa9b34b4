"""The checks, one family in each file."""
