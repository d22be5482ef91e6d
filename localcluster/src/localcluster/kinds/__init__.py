"""What each kind is: registry, strategies, schemas, CRDs, admission, discovery and OpenAPI."""
