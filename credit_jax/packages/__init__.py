"""Model packages: a trained model as a self-contained folder, without its data.

    package.json          schema version, SHA-256 of every file, provenance
    README.md             model card
    model.yml             config: model, data (no paths), preblocks, postblocks
    weights.safetensors   parameters by CREDIT's names; ours for models that it lacks
    channels.json         channels of every input and the output: variable, level, unit
    grid.nc               latitudes and longitudes
    static/SOURCE.nc      static fields of a source
    files/                scalers, coefficients of levels, other files of blocks
    scores.csv            optional: of `credit-jax score`

Paths in model.yml are relative to the folder.
"""
