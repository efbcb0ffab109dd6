"""What tests share: makers of dumps and runs, commands, servers, slow references."""
