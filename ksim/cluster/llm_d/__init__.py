"""llm-d's endpoint picker: its scheduling profiles, and the parts that they are made of.

Every part is a plug-in in `parts`, called as in an EndpointPickerConfig with
underscores for hyphens.  Its fields are the parameters, in snake case.
It inherits from nothing and has one of these methods:

    scorers     score(cycle, engines)           a number from 0 to 1 for each engine
    filters     keep(cycle, engines)            those that stay
    pickers     pick(cycle, engines, scores)    one of them
    producers   look(cycle, engines)            writes into the cycle what other parts read
    deciders    splits(cycle, engine)           whether another engine prefills for decode engine *engine*

Any part may have these too, which are called for what has been chosen:

    sent(cycle, number, profile)                engine *number* gets the request of *cycle*
    first_token(request, number)                its first token has come back
    ended(request, number)                      its last one has

`signals` names the signals of `ksim.cluster.routers` that a part reads, by default none.
"""
