"""Kubernetes manifests from one file of values: kustomize overlays and the Helm chart.

It may import: nothing of other rooms of tools but top-level files (`rules`); of the other packages
the planner (`workers.plan`) and settings.
"""
