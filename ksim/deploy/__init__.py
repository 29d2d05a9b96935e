"""Deployments as users have them, read as scenarios: launch lines and manifests.

A text goes one way:

    Pasted --> reader --> Command --> program --> Launch --> Deployed --> Imported
    pasted     readers    commands    programs    imported   imported     assembly

* `readers/NAME.py` takes a kind of text apart: shell lines, a Kubernetes manifest.  What starts engines in it are
  `Command`s: words with their places, environment variables, the image of a container, files that are beside.
* `programs/NAME.py` knows the flags of one program (vllm, sglang, trtllm) and makes a `Launch` of a `Command`.
* `assembly.py` makes a scenario of all launches, and `ksim import` writes it.

Nothing is passed over in silence: a word has an effect, or a `Note` says why it has none, or a ConfigError refuses it.
"""
