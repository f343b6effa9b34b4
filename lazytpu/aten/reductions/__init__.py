"""Ops that combine many elements into one: sums, extremes, scans, statistics, counts."""
