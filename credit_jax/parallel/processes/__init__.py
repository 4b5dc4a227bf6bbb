"""Runs of several processes: who started them, and how they find each other."""
