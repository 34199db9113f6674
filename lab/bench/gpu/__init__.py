"""`make gpu`: unattended validation on a GPU, in pieces that fit a lease of minutes.

Stages run in order of importance, each as a process with a time limit; every result is written
immediately. `pack` and `wheels` run on a machine with a package index, everything else without one.
"""
