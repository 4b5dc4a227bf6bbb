"""Which mesh to train on: candidates ranked by the time of an update."""
