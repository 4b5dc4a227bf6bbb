"""Keys of CREDIT's configs that have no effect here, each with the reason.

Those that are `NEVER_READ` are of generation 1, of commands, or misspelt: `credit
convert` and CREDIT's examples write them beside the keys of generation 2. A config with
them is right, however near they are to keys that are read; all other keys near a known
one are taken for typing errors. A test derives the names from CREDIT's YAMLs and its
code.
"""

NEVER_READ = "CREDIT's gen2 does not read it"
_BATCH_SYSTEM = "read by credit-jax submit only"
_GEN1 = "gen1 only; see trainer.parallelism"
_SCALER = "the era5_normalizer preblock has its own"

IGNORED_TOP = {
    "pbs": _BATCH_SYSTEM,
    "slurm": _BATCH_SYSTEM,
    "predict": "training only",
    "custom_models": "PyTorch classes; compare alone reads them",
    **dict.fromkeys(
        (
            "data_defaults",
            "data_valid",
            "diagnostics",
            "image_size",
            "postprocessing",
            "ptype",
            "sampling",
            "scaler",
            "use_ptype",
            "visualization",
        ),
        NEVER_READ,
    ),
}

IGNORED_DATA = {
    "valid_forecast_len": "validation_data.forecast_len is gen2's",
    "valid_history_len": "validation_data.history_len is gen2's",
    "mean_path": _SCALER,
    "std_path": _SCALER,
    "retain_graph": "trainer.backprop says how far gradients go",
    # Those that are near a key that is read; `passes_over` leaves out all others.
    **dict.fromkeys(
        ("bs_data_path", "data_path", "last_date", "quant_path", "rootpath"),
        NEVER_READ,
    ),
    "time_step": NEVER_READ,
}

IGNORED_TRAINER = {
    "mode": _GEN1,
    "domain_parallel_size": _GEN1,
    "use_mixed_precision": "gen1 only; see trainer.amp",
    "mixed_precision": "gen1 only; see trainer.amp",
    "compile": "the whole step is always compiled",
    "dataloader_timeout_s": "samples are read by threads of this process",
    "skip_nan_prune": "optuna only; a NaN loss always stops the run",
    **dict.fromkeys(
        (
            "apply_grad_penalty",
            "batch_iterations",
            "checkpoint_all_layers",
            "cpu_offload",
            "load_sheduler",
            "long_rollout",
            "save_data",
            "starting_window_size",
            "stop_rollout",
            "teacher_forcing_ratio",
            "window_size",
        ),
        NEVER_READ,
    ),
}
