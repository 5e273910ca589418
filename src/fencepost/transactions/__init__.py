"""Run one statement in a connection of the caller's, whatever library it is of."""
