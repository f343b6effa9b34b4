"""A step for inspection: its ops with source lines and operands, a model of its cost, its graphs."""
