"""CREDIT's state dicts: names and layouts of arrays; does not import torch."""
