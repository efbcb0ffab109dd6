"""A really trained model on long texts, without a hub: weights from a package, and books."""
