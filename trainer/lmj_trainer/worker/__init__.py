"""The process that trains: joins views, runs steps, writes checkpoints and results."""
