"""Random numbers of all distributions, from (seed, offset) alone (R7)."""
