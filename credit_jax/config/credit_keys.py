"""Keys of CREDIT's own configs that no code of its generation 2 reads.

They are those of generation 1, of commands, and misspelt ones, which `credit convert`
and CREDIT's examples write beside the keys of generation 2. A config with them is
right, however near they are to keys that are read; all other keys near a known one are
taken for typing errors. A test derives the names from CREDIT's YAMLs and its code.
"""

UNREAD_TOP = frozenset(
    {
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
    }
)

UNREAD_DATA = frozenset(
    {
        "TOA_forcing_path",
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
        "level_ids",
        "level_info_file",
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
        "sst_forcing",
        "static_variables",
        "surface_variables",
        "time_step",
        "train_years",
        "valid_years",
        "variables",
        "wet_mask_save_path",
    }
)

UNREAD_TRAINER = frozenset(
    {
        "apply_grad_penalty",
        "batch_iterations",
        "load_sheduler",
        "long_rollout",
        "save_data",
        "starting_window_size",
        "stop_rollout",
        "teacher_forcing_ratio",
        "window_size",
    }
)
