"""Population-based training: runs side by side that copy fitter ones and explore hyperparameters.

The package knows training as a whole and the files of runs, but no losses, environments or actors.
A population's configuration comes in; the members' run directories and lineages go out.
"""
