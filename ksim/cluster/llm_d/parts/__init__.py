"""The parts of llm-d's endpoint picker, a module for each kind; `ksim.cluster.llm_d` says what a part has."""
