"""Commands that a text runs: their words, the containers and files of flags around them, and the proxies among them."""
