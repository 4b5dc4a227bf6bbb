"""Runs of several processes: launchers, connection and failure detection."""
