"""Which positions and which heads are captured."""
