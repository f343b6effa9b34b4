"""What is known about a program beside its executable, and what it depends on."""
