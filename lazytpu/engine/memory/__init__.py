"""Live values on the device, and advice when memory is short."""
