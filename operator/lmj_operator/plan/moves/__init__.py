"""Ranks that leave their node."""
