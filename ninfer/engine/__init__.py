"""Device memory, batch building and the one synchronous entry ``Engine.run``; knows nothing of requests or HTTP."""
