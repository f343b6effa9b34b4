"""Sizes that vary: which bounds programs are made for, and what of the host's data is padded to them."""
