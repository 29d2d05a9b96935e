"""HTTP: where the server listens (`sockets`), who may ask what (`application`), how bodies are read and written."""
