"""Measure the points of a sweep on this machine's GPU: ``python -m ksim.calibration.runner POINTS -o FOLDER``.

`ksim.calibration.sweep` times points on a `Device` and writes the results.  `device` has the GPU that PyTorch sees, and
a function per family of kernels; to measure another family, add one there.
"""
