"""From texts to a dump: batches, rows, segments, threads, ranks."""
