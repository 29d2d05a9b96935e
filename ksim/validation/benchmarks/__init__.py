"""Results of benchmark clients beside simulations: how far a deployment is from its simulation, and what differs.

    files --> reader --> Recorded --> Replayed --> Compared --> causes, trends
    files     recordings recorded     load         comparison   causes, trends

* `find` reads what the user names: each file's tables (`files`) go to the reader in `ksim.validation.recordings` that
  recognises them; `shapes` has what several clients write alike, and `checks` refuses what cannot be.
* `load` makes the requests to simulate, and `scenario` the scenario; `match` says where the two are not of the same
  deployment.
* `comparison` sets both side by side; `causes`, by the fits in `fit`, says what differs in a run, `trends` over runs.
* `as_json` writes it all down.
"""
