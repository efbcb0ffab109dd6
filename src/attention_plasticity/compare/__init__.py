"""Several runs side by side: table, figures, and how the drop goes with a benchmark's score."""
