"""CREDIT's state dict of a model: names and layouts of its arrays, without torch."""
