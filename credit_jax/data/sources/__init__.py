"""Sources of data: what reads the fields of one section of `data.source`."""
