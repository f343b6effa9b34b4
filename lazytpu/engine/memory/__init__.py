"""What is alive on the device, and what to say when that is too much."""
