"""A finished run as others read it."""
