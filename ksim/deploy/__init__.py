"""How users run engines, read as scenarios (`ksim import`), and scenarios written as that (`ksim export`).

Import, from a text to a scenario (`importing.py`):

    Pasted --> reader --> Command --> program --> Launch --> Deployed --> Imported --> TOML
    texts      readers    commands    programs    engines    launches     assembly

* `readers/NAME.py` takes one kind of text apart: the lines of a shell (`shell`), a Kubernetes manifest (`manifests`),
  Helm values, AIConfigurator's results (`aiconfigurator`).  What starts engines in it are `Command`s: words with their
  places, environment variables, the container's image, and the files that the text itself writes.
* `programs/NAME.py` reads the `flags` of one program (vllm, sglang, trtllm, dynamo) and makes a `Launch` of a command;
  `engines` has what the flags of each engine amount to.  Which flags there are, and what each means, is data:
  ksim/data/flags.
* `assembly` makes a scenario of all launches; `workload` adds the load of a benchmark client's line, or a made-up one.

Export, from a scenario to texts (`exporting.py`): `export` describes the engines of a scenario as `Outgoing`, and
`writers/NAME.py` writes one form of it.

Nothing is passed over in silence: a word has an effect, or a `Note` says why it has none, or a ConfigError refuses it.
"""
