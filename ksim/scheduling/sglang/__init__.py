"""SGLang's scheduler."""
