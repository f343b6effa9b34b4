"""Parts of a step as functions of their own, one for all that are equal."""
