"""One file per table of a run: arrays of a head in, rows and quantities out."""
