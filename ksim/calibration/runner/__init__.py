"""Measure the points of a sweep on the GPU of this machine: ``python -m ksim.calibration.runner POINTS -o FOLDER``.

`sweep` times points on a `Device` and writes what it finds; `torch_device` is the GPU that PyTorch sees, and
`launches` has a function for each family of kernels.  To measure a family more, add a function there.
"""
