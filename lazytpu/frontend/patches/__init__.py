"""What is changed in torch's Python modules so that "tpu" is a citizen there."""
