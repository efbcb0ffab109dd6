"""Speed and memory, always as ratios to something timed in the same run."""
