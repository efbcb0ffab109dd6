"""The model: loading it, learning its layout, reading its attention calls."""
