"""Ops that make one element out of many: sums, extremes, running sums, statistics, counts."""
