"""`make -C lab gpu`: unattended validation on a GPU within one lease of a machine.

Stages run in order of importance, each as a process with a time limit; every result is written
immediately. `wheels` runs on a machine with a package index, everything else without one.
"""
