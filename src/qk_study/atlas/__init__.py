"""An atlas of a model: what each of its heads does, from one command."""
