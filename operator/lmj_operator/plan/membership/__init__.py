"""Views: who is in the next one, and where it starts from."""
