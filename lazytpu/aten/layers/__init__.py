"""Normalization, softmax, attention and the cells of recurrent layers."""
