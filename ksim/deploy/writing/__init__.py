"""What writers share: comments, documents of YAML, the parts of pods, an endpoint picker's configuration."""
