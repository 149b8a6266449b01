"""OpenAI's API in front of functions that serve as models."""
