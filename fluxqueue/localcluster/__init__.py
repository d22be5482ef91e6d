"""An embedded Kubernetes API for demos and tests where no cluster is at hand."""
