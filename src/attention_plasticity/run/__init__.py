"""A whole run: all heads of a dump, in parallel, resumable."""
