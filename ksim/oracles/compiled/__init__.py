"""Attention's formulas, compiled for one layer on one GPU: what is called staging.

A serving simulation prices a new batch of attention at every step, of which only counts are new: sequences, tokens,
keys.  The formulas are written once, over a namespace of operations (`arithmetic`), and run on floats, arrays or
symbols.  Run on symbols, a formula records its operations (`staging`).  What follows from the layer, the GPU and the
bounds of the counts is worked out once.  The rest becomes straight Python code for batches with and without decodes and
chunks.  `attention` joins it with fitted models that are prepared in the same spirit (`predictors`).  The code gives
the formula's own bits, and loads that mostly decode run 1.5 times as fast.
"""
