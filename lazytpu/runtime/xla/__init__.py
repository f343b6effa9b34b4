"""XLA: its client, modules, and the programs that it compiles."""
