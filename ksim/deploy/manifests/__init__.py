"""Kubernetes manifests: documents to pods, pods to containers, containers to the commands that start engines.

* `containers` knows the kinds of Kubernetes, makes `Pods` of them, and finds the commands in their containers.
* `dynamo` makes pods and the router of Dynamo's graphs, `model_service` those of the values of llm-d's chart.
* `fields` tells fields that are read from those without effect and unknown ones, and reads labels of GPUs and services
  of Docker Compose.
"""
