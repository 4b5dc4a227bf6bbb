"""Jobs of PBS and SLURM, from CREDIT's `pbs:` and `slurm:` sections."""
