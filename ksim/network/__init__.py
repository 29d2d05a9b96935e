"""How long does a message take?  The graph of links, routes over it, and collectives."""
