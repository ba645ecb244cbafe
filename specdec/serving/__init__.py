"""A continuous-batching server in simulated time: arrivals, step times, policies, and the event loop. Imports no torch."""
