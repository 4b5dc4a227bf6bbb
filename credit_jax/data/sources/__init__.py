"""Sources of data, which read the fields of one section of `data.source`."""
