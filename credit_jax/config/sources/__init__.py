"""The sections of `data.source`: a class for each `dataset_type`."""
