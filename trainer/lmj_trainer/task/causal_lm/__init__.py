"""Each token of a text from those before it: models that write."""
