"""A stage's training state (weights, moments, gradients) and the optimizer that changes it."""
