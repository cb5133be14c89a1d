"""What failed, what is done about it, and what that costs."""
