"""Files: opening NetCDF and Zarr, writing what appears complete or not at all."""
