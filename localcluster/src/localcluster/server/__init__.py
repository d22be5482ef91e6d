"""API machinery of the embedded Kubernetes API: store, watch, patches, apply, HTTP."""
