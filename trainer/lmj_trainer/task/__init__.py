"""What a model is trained for: its loss, what is counted when it is evaluated, and the scores of that."""
