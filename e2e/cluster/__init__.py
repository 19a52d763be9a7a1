"""A real Kubernetes cluster on one Linux machine, and everything that it takes to get one.

Standard library only: this runs before any virtual environment exists. The pieces:

* ``providers.select()``: the cluster itself, as ``existing``, ``kind`` or ``local``;
* ``packages``, ``golang``, ``binaries``, ``images``: what has to be there first, each an independent
  function that takes a progress callback, so that a caller can run them side by side;
* ``apiserver.ControlPlane``: etcd and kube-apiserver alone, for tests, ready in about three seconds.
"""
