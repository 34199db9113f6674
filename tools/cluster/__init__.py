"""A cluster's models as one list: a file of values, and what kustomize and Helm make of it.

It may import: nothing of other rooms of tools but files that lie in none (`rules`); of the other
packages the planner (`workers.plan`) and settings.
"""
