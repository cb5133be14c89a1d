"""One of several labels for each word of a text: names, parts of speech."""
