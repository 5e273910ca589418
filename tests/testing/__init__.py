"""The testing kit, tested by what it says of real jobs."""
