"""Model packages: a trained model as a self-contained folder, without its data.

    package.json          schema version, SHA-256 of every file, provenance
    README.md             model card
    model.yml             config: model, data (no paths), preblocks, postblocks
    weights.safetensors   CREDIT's names of the parameters; for models that CREDIT lacks,
                          those of credit_jax
    channels.json         channels of every input and the output: variable, level, unit
    grid.nc               latitudes and longitudes
    static/SOURCE.nc      static fields of a source
    files/                scalers, coefficients of levels, and other files that blocks read
    scores.csv            optional: of `credit-jax score`

Paths in model.yml are relative to the folder.
"""
