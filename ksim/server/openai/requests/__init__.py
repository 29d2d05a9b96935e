"""Requests of clients: their fields, what vLLM refuses of them, their messages, images and prompts."""
