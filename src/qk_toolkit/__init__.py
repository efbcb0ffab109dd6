"""What any command-line program of ours needs: errors, files, settings, commands, terminal."""
