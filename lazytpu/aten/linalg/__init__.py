"""Matrices: products, factorizations, solutions, spectra, distances and Fourier transforms."""
