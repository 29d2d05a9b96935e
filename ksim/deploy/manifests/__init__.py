"""Kubernetes manifests: documents to pods, pods to containers, containers to the commands that start engines.

    documents --> Pods --> container --> Command --> Launch
    kinds         pods     containers    scripts     pods

* `kinds` knows the kinds of Kubernetes, `dynamo` (with its `frontend`) that of Dynamo's graphs, and `model_service` the
  values of llm-d's chart.  Each makes `Pods`; where these are in no text, `made` puts their entries together.
* `fields` tells fields that are read from those without effect and unknown ones, and `node_labels` a node's GPU.
* `endpoint_picker` makes a router of llm-d's configuration.
"""
