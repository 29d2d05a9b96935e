"""How users run engines, read as scenarios (`ksim import`), and scenarios written as that (`ksim export`).

Import, from a text to a scenario (`importing.py`):

    Pasted --> reader --> ShellCommand --> program --> EngineLaunch --> Deployed --> Imported --> TOML

* `readers/NAME.py` takes one kind of text apart: the lines of a shell (`shell`), a Kubernetes manifest (`manifests`),
  Helm values, AIConfigurator's results.  What starts engines in it are `ShellCommand`s: words with their places,
  environment variables, the container's image, and the files that the text itself writes.
* `programs/NAME.py` reads the `flags` of one program (vllm, sglang, trtllm, dynamo) and makes an `EngineLaunch` of a
  command.  Which flags and fields there are, and what each means, is data: ksim/data/flags and ksim/data/manifests.
* `importing` makes a scenario of all launches; `workload` adds the load of a benchmark client's line, or a made-up one.

Export, from a scenario to texts (`exporting.py`): `Outgoing` describes the engines of a scenario, and `writers/NAME.py`
writes one form of it.

Nothing is passed over in silence: a word has an effect, or a `Note` says why it has none, or a ConfigError refuses it.
"""
