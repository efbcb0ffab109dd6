"""Numbers from sums over rows. Arrays in, arrays out; numpy and scipy only."""
