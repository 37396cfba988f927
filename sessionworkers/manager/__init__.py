"""The parent of several workers. It never imports an app.

``plan`` says who should run, without processes or a clock, over ``slots`` and in ``actions``; ``scaling`` how many;
``shell`` carries that out, woken by descriptors alone (``wakeup``). ``process`` execs workers, ``protocol`` is what
they and the manager say to each other, ``sockets`` binds what they listen on, ``cores`` counts what they may use.
``control`` is the control socket, ``orders`` what it answers.
"""
