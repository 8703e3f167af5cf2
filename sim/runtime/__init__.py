"""What the engine around a scheduler does to a batch: adapters that fill the hooks of `sim.scheduler.hooks`."""
