"""Matrices: products, factorizations, solves, spectra, distances and Fourier transforms."""
