"""The checks, one family per file."""
