"""From what the user names as dataset to batches: read, split, label, tokenize once, map, order. No torch here."""
