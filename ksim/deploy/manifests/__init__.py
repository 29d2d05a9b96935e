"""Kubernetes manifests: the pods that they make, the containers in those, and the commands that containers run.

A document goes to the module that knows its kind (`kinds.py`), which makes `Pods`; `pods.py` makes launches of them.
"""
