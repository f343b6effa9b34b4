"""Other libraries on the device: what each needs, done when it is imported."""
