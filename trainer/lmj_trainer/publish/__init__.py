"""A trained model on the hub, with a card."""
