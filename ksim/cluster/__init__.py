"""Where does it happen?  Engines, the router before them, and the way of a request through both."""
