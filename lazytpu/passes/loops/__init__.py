"""Loop rolling: repeated stretches of a long program become loops."""
