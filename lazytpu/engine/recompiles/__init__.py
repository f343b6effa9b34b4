"""The reason for each compilation: the nearest earlier program, the difference, and the fix."""
