"""Attention's formulas, compiled for one layer on one GPU: what is called staging.

A serving simulation prices another batch of attention at every step, of which nothing is new but counts: sequences,
tokens, keys.  The formulas of attention are written once, over a namespace of operations (`arithmetic`), and run on
floats, on arrays or on symbols.  Run on symbols, a formula records its operations (`staging`), and what follows from
the layer, the GPU and the bounds of the counts (`intervals`) is worked out once and for all.  The rest becomes straight
Python code for batches with and without decodes and chunks (`formulas`), joined with fitted models that are prepared in
the same spirit (`predictors`) in `attention`.  The code gives the formula's own bits, and loads that mostly decode run
1.5 times as fast.
"""
