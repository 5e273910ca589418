"""Faults that users of other job queues met, tried here in every way in that they could come in."""
