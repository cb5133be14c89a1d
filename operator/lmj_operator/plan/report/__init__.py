"""What the status says of training."""
