"""Keys of CREDIT's configs that have no effect here, each with the reason.

Most are `NEVER_READ`: those of generation 1, of commands, and misspelt ones, which
`credit convert` and CREDIT's examples write beside the keys of generation 2. A config
with them is right, however near they are to keys that are read; all other keys near a
known one are taken for typing errors. A test derives the names from CREDIT's YAMLs and
its code.
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
    **dict.fromkeys(
        (
            "bs_data_path",
            "bs_file_format",
            "bs_years_test",
            "bs_years_train",
            "bs_years_val",
            "data_path",
            "dataset_type",
            "datasets",
            "diagnostic_variables",
            "dynamic_forcing_variables",
            "dynamic_forcing_vars_key",
            "first_date",
            "forcing_variables",
            "image_height",
            "image_width",
            "input_length",
            "last_date",
            "lead_time_periods",
            "level_ids",
            "level_info_file",
            "one_shot",
            "output_length",
            "prognostic_vars_key",
            "quant_path",
            "rootpath",
            "save_loc",
            "save_loc_diagnostic",
            "save_loc_dynamic_forcing",
            "save_loc_forcing",
            "save_loc_physics",
            "save_loc_static",
            "save_loc_surface",
            "scaler_type",
            "skip_periods",
            "sst_forcing",
            "static_first",
            "static_variables",
            "surface_variables",
            "time_step",
            "TOA_forcing_path",
            "train_years",
            "valid_years",
            "variables",
            "wet_mask_save_path",
        ),
        NEVER_READ,
    ),
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
