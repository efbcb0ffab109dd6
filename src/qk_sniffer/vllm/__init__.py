"""The engine of vLLM: its workers take the rows of a capture while it prefills texts."""
