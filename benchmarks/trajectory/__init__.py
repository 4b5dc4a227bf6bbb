"""Compares training runs with CREDIT's trainer, step by step."""
