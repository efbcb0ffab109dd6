"""Parts that all commands share: errors, files, settings and the command line."""
