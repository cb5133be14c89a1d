"""A number for each text, or pair of texts."""
