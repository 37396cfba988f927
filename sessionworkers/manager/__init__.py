"""The parent of several workers. It never imports an app.

``plan`` says who should run, without processes or a clock; ``shell`` carries that out, woken by descriptors alone;
``process`` execs workers, ``protocol`` is what they and the manager say to each other, ``sockets`` binds what they
listen on.
"""
