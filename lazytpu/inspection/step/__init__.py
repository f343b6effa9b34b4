"""A step to look at: its ops with source lines and operands, a model of its cost, its graphs."""
