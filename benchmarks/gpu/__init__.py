"""Everything that one GPU can say about this project in a few minutes."""
