"""The kinds: registry, strategies, schemas, CRDs, admission, discovery and OpenAPI."""
