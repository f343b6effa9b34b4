"""Loops: equal stretches of a long program, rolled."""
