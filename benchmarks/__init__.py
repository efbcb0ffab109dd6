"""Speed and memory, as ratios to a reference that is timed in turns with what is measured."""
