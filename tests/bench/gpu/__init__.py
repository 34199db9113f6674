"""`make gpu`: the first proof on a chip, unattended, within one lease of a machine.

Stages in order of worth, each a process with a time limit; every result is written as it comes.
`wheels` runs where packages can be fetched, everything else where they can't.
"""
