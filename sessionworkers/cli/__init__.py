"""The command line. ``main`` has the commands; each is imported when it is called."""
