"""How long does a message take?  The graph of links, routes through it, and collectives."""
