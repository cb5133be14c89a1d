"""Where checkpoints lie: a module for each kind of storage, and a line in the registry."""
