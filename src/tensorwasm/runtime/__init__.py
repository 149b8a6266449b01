"""Where nouns meet: deploy and invoke."""
