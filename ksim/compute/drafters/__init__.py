"""Drafters: models that propose tokens for a target to verify, written as the target's architectures are.

A draft model is any model.  A head (EAGLE, EAGLE-3, or a module of the target's own checkpoint that predicts further
tokens, MTP) has a layer or a few of its own, reads the target's hidden states, and borrows what it shares with it.
"""
