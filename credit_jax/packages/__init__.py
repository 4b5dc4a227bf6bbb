"""Model packages: a trained model as a folder that needs nothing else.

    package.json          schema version, SHA-256 of every file, where it comes from
    README.md             model card
    model.yml             config: model, data (no paths), preblocks, postblocks
    weights.safetensors   CREDIT's names of the parameters; own names for other models
    channels.json         input and output channels in order: variable, level, unit
    grid.nc               latitudes and longitudes
    static/SOURCE.nc      static fields of a source
    files/                scalers, coefficients of levels, whatever else blocks read
    scores.csv            optional: of `credit-jax score`

Paths in model.yml are relative to the folder.
"""
