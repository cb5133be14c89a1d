"""Any number of several labels for each text, or pair of texts."""
