"""Looking at a running server from outside: the control socket's HTTP, who is found, readiness.

``http`` is the exchange without I/O, ``place`` finds a running server and asks it, ``ready`` answers ``/-/ready`` and
``/-/live``, ``sessions`` is what one worker tells of its sessions.
"""
