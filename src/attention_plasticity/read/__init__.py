"""Files of a dump, as the arrays of a key head and its query heads."""
