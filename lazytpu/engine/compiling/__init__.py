"""A cut whose program is not known: import, passes, emission and XLA, at once or in the background."""
