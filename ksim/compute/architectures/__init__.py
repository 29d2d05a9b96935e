"""Model architectures: from a Hugging Face ``config.json`` to einsums.

To add one, add a file with a function ``(config) -> Decoder``, called what
`model_type` is in the config.  Sizes come from the config, kernels, weights,
cache and communication from the equations; `tests/laws` checks that they agree.
A family that is another under a name is a file that imports the other's function.

Ask the config for keys by its methods: a key that nobody asked for is refused,
unless `ksim.compute.neutral_keys` lists it.
"""
