"""Support for other libraries on the device, installed when each is imported."""
