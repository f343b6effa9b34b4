"""Execution of cuts: chooses a program, or on a miss imports, rewrites, lowers and compiles one, and runs it."""
