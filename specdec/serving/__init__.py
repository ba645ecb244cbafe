"""A continuous-batching server in simulated time: arrivals, step times, policies, the event loop. Without torch."""
