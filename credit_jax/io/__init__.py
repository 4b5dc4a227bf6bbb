"""Opens NetCDF files and Zarr stores, and writes files and folders atomically."""
