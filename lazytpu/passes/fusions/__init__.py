"""What the compiler of the CPU may put into one loop."""
