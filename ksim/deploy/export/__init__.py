"""A scenario on its way out (outgoing), and what writers share: lines, pods, comments, the endpoint picker."""
