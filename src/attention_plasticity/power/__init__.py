"""The error to expect from other sizes of a sample."""
