"""Measure the points of a sweep on this machine's GPU: ``python -m ksim.calibration.runner POINTS -o FOLDER``.

`sweep` times points on a `Device` and writes the results; `torch_device` is the GPU that PyTorch sees; `launches` has a
function per family of kernels.  To measure another family, add a function there.
"""
