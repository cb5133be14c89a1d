"""The part of a text that answers a question: SQuAD, with and without questions that the text does not answer."""
