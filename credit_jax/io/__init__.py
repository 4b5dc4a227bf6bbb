"""Opens NetCDF files and Zarr stores, and writes files and folders atomically."""

import os

# Files are read and never shared with writers; some file systems have no locks. HDF5
# reads the variable when it is loaded; flags of single files would have to agree with
# those of others who have them open.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")
