"""Published studies: one folder each, with the program that makes its numbers."""
