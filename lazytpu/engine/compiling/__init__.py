"""Compilation of a cut without a program: import, passes, emission and XLA, on the cut's thread or in
the background."""
