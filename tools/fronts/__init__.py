"""Tests of other projects' front ends on the device: `make test-fronts`. The gate, whose environment lacks
these packages, does not run them."""
