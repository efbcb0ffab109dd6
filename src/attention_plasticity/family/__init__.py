"""Numbers and figures of several models: lengths, depth, scores, checkpoints, roles, same heads."""
