"""What runs in the pod: the standard library alone, because its source is sent there. This machine uses the same code for its own files."""
