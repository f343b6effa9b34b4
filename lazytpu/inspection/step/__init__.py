"""A step as something to look at: its ops with lines and operands, a model of its cost, graphs of it."""
