"""Passes on the communication between devices."""
