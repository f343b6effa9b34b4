"""Outlining of parts of a step as functions, shared by equal parts."""
