"""Writes trained models as folders to hand on."""
