"""A follower keeps the state of a rank as its source has it, by a copy and the gradients of every later step."""
