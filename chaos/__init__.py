"""Break a running fleet on purpose, and check that nothing acknowledged is lost."""
