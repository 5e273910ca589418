"""One migration for each release of fencepost that changes its schema."""
