"""Tokens of a text that are hidden from the model: models that read."""
