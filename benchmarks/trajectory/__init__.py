"""Training runs beside CREDIT's own trainer, step by step."""
