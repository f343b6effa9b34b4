"""XLA: its client, modules, and compiled programs."""
